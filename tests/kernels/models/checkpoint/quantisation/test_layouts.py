from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import iterate_tensors, load_tensors, load_weights
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from support.models import make_tiny_model
from support.quantised_models import FORMS, Tensors, write_quantised

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("source") / "model", family="qwen2", tied=False)


@pytest.fixture(scope="module")
def quantised(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a form, written once."""
    root = tmp_path_factory.mktemp("quantised")

    def folder(form: str) -> Path:
        target = root / form.replace(" ", "-")
        return target if target.exists() else write_quantised(source, target, FORMS[form])

    return folder


@pytest.mark.parametrize("form", FORMS)
def test_weights_decode_to_what_the_format_says(quantised: Callable[[str], Path], form: str) -> None:
    folder = quantised(form)
    plain = folder.with_name(f"{folder.name}-plain")
    got = load_tensors(folder, ModelConfig.from_folder(folder))
    expected = load_tensors(plain, ModelConfig.from_folder(plain))
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(got[name].view(torch.int16), tensor.view(torch.int16)), name


@pytest.mark.parametrize("form", FORMS)
def test_all_linear_layers_but_the_head_stay_quantised(quantised: Callable[[str], Path], form: str) -> None:
    folder = quantised(form)
    weights = load_weights(folder, ModelConfig.from_folder(folder))
    held = {name for name, weight in weights.items() if isinstance(weight, QuantisedWeight)}
    assert held == {name for name in weights if name.endswith("_proj.weight")}
    assert len(held) == 14


def test_a_head_may_be_quantised_and_is_then_no_copy_of_the_embedding(source: Path, tmp_path: Path) -> None:
    form = FORMS["pack4 g32"]
    config = {**form.config, "ignore": []}
    folder = write_quantised(source, tmp_path / "head", type(form)(config, form.write, ignore=()))
    weights = load_weights(folder, ModelConfig.from_folder(folder))
    assert isinstance(weights["lm_head.weight"], QuantisedWeight)
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    assert not ModelConfig.from_folder(folder).tie_word_embeddings


def test_parts_of_a_weight_may_lie_in_other_files_than_it(quantised: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(quantised("gptq v2"), tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {f"part-{index}.safetensors": names[index::3] for index in range(3)}
    for file, each in parts.items():
        save_file({name: tensors[name] for name in each}, folder / file)
    weight_map = {name: file for file, each in parts.items() for name in each}
    (folder / "model.safetensors.index.json").write_text(f'{{"weight_map": {weight_map}}}'.replace("'", '"'))
    config = ModelConfig.from_folder(folder)
    whole = load_tensors(quantised("gptq v2"), config)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in iterate_tensors(folder, config))


def test_some_are_read_alone(quantised: Callable[[str], Path]) -> None:
    folder = quantised("awq g64")
    config = ModelConfig.from_folder(folder)
    alone = dict(iterate_tensors(folder, config, [f"{Q}.weight", "lm_head.weight"]))
    assert alone.keys() == {f"{Q}.weight", "lm_head.weight"}
    assert torch.equal(alone[f"{Q}.weight"], load_tensors(folder, config)[f"{Q}.weight"])


def changed(part: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({f"{Q}.{part}": change(tensors[f"{Q}.{part}"])})


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: torch.full_like(tensor, value)


@pytest.mark.parametrize(
    ("form", "change", "message"),
    [
        ("fp8 block", lambda t: t.pop(f"{Q}.weight_scale_inv"), rf"1 tensors are missing.*{Q}\.weight_scale_inv"),
        ("fp8 block", changed("weight_scale_inv", lambda t: t[:, :0]), r"has shape \[1, 0\], expected \[1, 1\]"),
        ("fp8 block", changed("weight_scale_inv", filled(float("nan"))), "holds nan, must be 0 or of a size"),
        ("fp8 block", changed("weight_scale_inv", filled(1e38)), r"weight_scale_inv holds 1e\+38"),
        ("fp8 block", changed("weight", filled(float("nan"))), "weight holds NaN"),
        ("fp8 block", changed("weight", lambda t: t.to(torch.bfloat16)), "has dtype BF16, expected one of F8_E4M3"),
        ("fp8 tensor", changed("weight_scale", lambda t: t.expand(7)), r"has shape \[7\], expected \[\] or \[1\]"),
        ("float channel", changed("weight_scale", filled(1e-30)), "weight_scale holds"),
        ("int8", changed("weight", lambda t: t.view(torch.uint8)), "has dtype U8, expected one of I8"),
        ("int8 zeros", lambda t: t.pop(f"{Q}.weight_zero_point"), "the first is .*weight_zero_point"),
        ("pack4 g32", lambda t: t.update({f"{Q}.weight_g_idx": torch.zeros(128)}), "unexpected tensor .*weight_g_idx"),
        ("pack4 g32", changed("weight_shape", lambda t: t.flip(0) + 1), r"weight_shape holds \[129, 129\]"),
        ("pack4 g32", changed("weight_packed", lambda t: t[1:]), r"has shape \[127, 16\], expected \[128, 16\]"),
        ("awq g64", changed("qzeros", lambda t: t[1:]), r"qzeros has shape \[1, 16\], expected \[2, 16\]"),
        ("gptq g64", changed("g_idx", lambda t: t.flip(0)), r"g_idx is not in the order of columns \(desc_act\)"),
        ("gptq g64", changed("scales", filled(float("inf"))), "scales holds inf"),
        (
            "gptq g64",
            lambda t: t.update({"model.layers.1.mlp.up_proj.bias": torch.ones(192)}),
            "up_proj.bias is not zero, and the model has none there",
        ),
    ],
)
def test_tensors_that_contradict_one_another_are_named(
    quantised: Callable[[str], Path], tmp_path: Path, form: str, change: Callable[[Tensors], object], message: str
) -> None:
    folder = Path(shutil.copytree(quantised(form), tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_tensors(folder, ModelConfig.from_folder(folder))


def test_what_some_writers_leave_behind_is_left_out(quantised: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(quantised("gptq g64"), tmp_path / "model"))
    config = ModelConfig.from_folder(folder)
    before = load_tensors(folder, config)
    tensors = load_file(folder / "model.safetensors")
    tensors |= {"model.layers.0.mlp.up_proj.bias": torch.zeros(192), "model.layers.1.self_attn.k_scale": torch.ones(1)}
    save_file(tensors, folder / "model.safetensors")
    after = load_tensors(folder, config)
    assert after.keys() == before.keys()
