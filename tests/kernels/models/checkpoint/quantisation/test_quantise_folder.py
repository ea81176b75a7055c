from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.__main__ import main
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors, load_weights
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from support.models import make_tiny_model


@pytest.mark.parametrize("shards", [1, 3])
def test_a_folder_with_fewer_bits(tmp_path: Path, shards: int) -> None:
    source = make_tiny_model(tmp_path / "source", family="qwen2", tied=False, shards=shards)
    report = quantise_folder(source, tmp_path / "out" / "model", RoundedFormat("w4a16", 64))
    assert report.startswith("14 layers in w4a16, ") and "left" not in report
    out = tmp_path / "out" / "model"
    assert {path.name for path in out.iterdir()} == {path.name for path in source.iterdir()}
    assert [path.name for path in out.parent.iterdir()] == ["model"]
    config = ModelConfig.from_folder(out)
    weights = load_weights(out, config)
    assert sum(isinstance(each, QuantisedWeight) for each in weights.values()) == 14
    before, after = load_tensors(source, ModelConfig.from_folder(source)), load_tensors(out, config)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        error = (after[name].float() - tensor.float()).norm() / tensor.float().norm()
        assert error < (0.15 if name.endswith("_proj.weight") else 1e-9), name


def test_layers_with_inputs_that_no_group_divides_are_named(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", layers=1)  # 192 columns in the midst
    report = quantise_folder(source, tmp_path / "model", RoundedFormat("w4a16", 128))
    assert report.endswith("left as they are, as their inputs are no multiple of 128: model.layers.0.mlp.down_proj")
    weights = load_weights(tmp_path / "model", ModelConfig.from_folder(tmp_path / "model"))
    assert isinstance(weights["model.layers.0.mlp.down_proj.weight"], torch.Tensor)
    assert isinstance(weights["model.layers.0.mlp.up_proj.weight"], QuantisedWeight)
    assert quantise_folder(source, tmp_path / "eight", RoundedFormat("fp8")).startswith("7 layers in fp8")


def test_what_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", layers=1)
    quantise_folder(source, tmp_path / "once", RoundedFormat("fp8"))
    with pytest.raises(CheckpointError, match=r"once: the model is quantised already \(compressed-tensors\)"):
        quantise_folder(tmp_path / "once", tmp_path / "twice", RoundedFormat("fp8"))
    with pytest.raises(CheckpointError, match="once: there is something already"):
        quantise_folder(source, tmp_path / "once", RoundedFormat("fp8"))
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(CheckpointError, match="tensors are missing"):
        quantise_folder(source, tmp_path / "short", RoundedFormat("fp8"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["once", "source"]


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_weights_that_are_no_numbers(tmp_path: Path, number: float) -> None:
    source = make_tiny_model(tmp_path / "source", layers=1)
    tensors = load_file(source / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][3, 5] = number
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    told = r"model.safetensors: model.layers.0.mlp.up_proj.weight holds NaN or infinite numbers, which are not rounded"
    with pytest.raises(CheckpointError, match=told):
        quantise_folder(source, tmp_path / "out", RoundedFormat("w4a16", 32))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("device", "reason"), [("meta", "supported are cpu and cuda"), ("cuda:99", ""), ("gpu", "Expected one of cpu")]
)
def test_a_device_that_is_not_there(
    device: str, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["quantize", "DIR", "OUT", "--format", "fp8", "--device", device])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert f"argument --device: {device!r} cannot be used here: {reason}" in capsys.readouterr().err
