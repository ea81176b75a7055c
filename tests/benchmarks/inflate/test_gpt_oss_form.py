"""A dense model as a gpt-oss with experts in MXFP4 computes what it computed, but for the rounding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.inflate.__main__ import main
from benchmarks.inflate.gpt_oss_form import GptOssTensors, packed
from benchmarks.inflate.shape import Shape, ShapeError
from benchmarks.inflate.tensors import RandomModel
from slipstream_kernels.models.checkpoint.model_config import ModelConfig, read_json
from slipstream_kernels.models.checkpoint.quantisation.mxfp4 import mxfp4_weights
from slipstream_kernels.models.checkpoint.tensor_names import stored_shapes
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors
from slipstream_kernels.ops.experts.clamped_swiglu import SLOPE, clamped_swiglu_reference
from slipstream_kernels.ops.round_weight import round_weight
from support.folder_logits import folder_logits
from support.models import make_tiny_model

CHOSEN = 2


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(
        tmp_path_factory.mktemp("models") / "dense", heads=4, kv_heads=2, intermediate_size=128, max_context=512
    )


@pytest.fixture(scope="module")
def shape(dense: Path) -> Shape:
    source = ModelConfig.from_folder(dense)
    return Shape(
        5 * source.hidden_size, source.num_layers + 1, 4, 2, source.head_dim, 96, 600, 512,
        experts=4, experts_per_token=CHOSEN,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folders(dense: Path, shape: Shape, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("wide")
    flags = {
        "hidden": shape.hidden_size, "layers": shape.num_layers, "heads": 4, "kv-heads": 2, "head-dim": shape.head_dim,
        "intermediate": 96, "vocab": 600, "context": 512, "experts": 4, "experts-per-token": CHOSEN,
    }  # fmt: skip
    sizes = [str(part) for name, size in flags.items() for part in (f"--{name}", size)]
    for name, more in (("plain", ()), ("mxfp4", ("--format", "mxfp4"))):
        assert main([str(place / name), "--model", str(dense), "--shape", "gpt-oss-20b", *sizes, *more]) == 0
    return {name: place / name for name in ("plain", "mxfp4")}


def test_weights_are_the_mixtures_but_for_slope_and_rounding(folders: dict[str, Path]) -> None:
    configs = {name: ModelConfig.from_folder(folder) for name, folder in folders.items()}
    plain, rounded = (load_tensors(folders[name], config) for name, config in configs.items())
    config = configs["mxfp4"]
    assert (
        config.family == "gpt_oss" and config.packed_experts and not any(each.window for each in config.attention_forms)
    )
    assert configs["plain"].family == "mixtral" and rounded.keys() > plain.keys()
    for name, tensor in plain.items():
        if ".experts." not in name:
            assert tensor.equal(rounded[name]), name
            continue
        factor = {"gate": 1 / SLOPE, "down": SLOPE}.get(name.split(".")[-2].removesuffix("_proj"), 1.0)
        close = (rounded[name].float() - factor * tensor.float()).abs()
        largest = factor * tensor.float().abs().amax()
        assert close.max() <= largest / 4, "between 4 and 6 of a scale are 2, half of which is a sixth of the largest"
        assert not tensor.any() or rounded[name].any()
    for name in rounded.keys() - plain.keys():
        expected = -1e4 if name.endswith("sinks") else -1 if name.endswith("up_proj.bias") else 0
        torch.testing.assert_close(
            rounded[name].float(), torch.full(rounded[name].shape, float(expected)), rtol=4e-3, atol=0
        )


@pytest.mark.slow
def test_logits_are_near_the_dense_models(dense: Path, folders: dict[str, Path]) -> None:
    vocab = ModelConfig.from_folder(dense).vocab_size
    tokens = np.random.default_rng(0).integers(4, vocab, 200).tolist()
    expected, found = folder_logits(dense, tokens), folder_logits(folders["mxfp4"], tokens)
    assert np.corrcoef(expected.ravel(), found[:, :vocab].ravel())[0, 1] > 0.95
    assert found[:, vocab:].max() < -1000


def test_experts_gate_as_swiglu_does(folders: dict[str, Path]) -> None:
    tensors = {name: each.float() for name, each in load_tensors(
        folders["mxfp4"], ModelConfig.from_folder(folders["mxfp4"])
    ).items()}  # fmt: skip
    expert, x = "model.layers.0.mlp.experts.1.", torch.randn(5, len(tensors["model.norm.weight"]))
    gate, up, down = (tensors[f"{expert}{part}_proj.weight"] for part in ("gate", "up", "down"))
    both = torch.cat([x @ gate.T, x @ up.T + tensors[f"{expert}up_proj.bias"]], dim=1)
    found = clamped_swiglu_reference(both, 1e4) @ down.T
    expected = (torch.nn.functional.silu(x @ gate.T * SLOPE) * (x @ up.T)) @ down.T / SLOPE
    assert expected.any()
    torch.testing.assert_close(found, expected)


def test_bytes_and_shapes_are_known_before(dense: Path, shape: Shape) -> None:
    fields = shape.config_json(read_json(dense / "config.json"))
    made = GptOssTensors(RandomModel(dense, shape), shape, fields)
    stored = dict(made.stored())
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == dict(stored_shapes(made.config))
    assert made.nbytes == sum(tensor.nbytes for tensor in stored.values())


def test_what_is_packed_is_read_again() -> None:
    weight = round_weight(torch.randn(6, 96), "e2m1", 32)
    blocks, exponents = packed(weight)
    (again,) = mxfp4_weights(blocks[None], exponents[None], "here")
    assert again.codes.equal(weight.codes) and again.scales.equal(weight.scales)


def test_what_does_not_become_one_is_refused(
    dense: Path, shape: Shape, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "out"), "--random", "--format", "mxfp4", "--model", str(dense)]) == 1
    assert "experts of a llama do not become those of a gpt-oss in MXFP4" in capsys.readouterr().err
    narrow = replace(shape, intermediate_size=80)
    fields = narrow.config_json(read_json(dense / "config.json"))
    with pytest.raises(ShapeError, match="intermediate_size is 80, which is no multiple of MXFP4's 32"):
        GptOssTensors(RandomModel(dense, narrow), narrow, fields)
