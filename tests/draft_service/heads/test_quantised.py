"""A quantised head is the head that its weights decode to; what is no such weight is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service.heads.config import HeadConfig
from draft_service.heads.files import read_tensors, tensor_names
from draft_service.heads.loading import load_eagle
from draft_service.heads.medusa_loading import load_medusa
from draft_service.heads.mlp_speculator_loading import load_mlp_speculator
from draft_service.heads.mtp_loading import load_mtp
from slipstream.speculation.checkpoint_names import method_of
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from support.eagle_heads import EAGLE1, EAGLE3, Shape, write_head, write_target
from support.medusa_heads import LAYOUTS as MEDUSA
from support.medusa_heads import write_medusa
from support.mlp_speculators import LAYOUTS as SPECULATORS
from support.mlp_speculators import write_speculator
from support.mtp_heads import LAYOUTS as MTP
from support.mtp_heads import write_mtp
from support.quantised_models import FORMS, write_quantised

SHAPE = Shape(hidden=64, intermediate=128)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """All tensors within a head, in the order of its fields."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for key in sorted(value) for tensor in tensors_of(value[key])]
    if isinstance(value, list | tuple):
        return [tensor for each in value for tensor in tensors_of(each)]
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    fields = getattr(value, "__dict__", None) or {name: getattr(value, name, None) for name in names}
    return [tensor for name in sorted(fields) for tensor in tensors_of(fields[name])] if fields else []


def assert_alike(quantised: Any, plain: Any) -> None:
    found, expected = tensors_of(quantised), tensors_of(plain)
    assert len(found) == len(expected) > 3
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", FORMS)
def test_every_form_decodes_to_its_plain_twin(name: str, tmp_path: Path) -> None:
    write_target(tmp_path / "target", hidden=64)
    write_head(tmp_path / "head", EAGLE3["layers.0"], SHAPE)
    folder = write_quantised(tmp_path / "head", tmp_path / "quantised", FORMS[name])
    plain = folder.with_name("quantised-plain")
    quantisation = HeadConfig.from_folder(folder).quantisation
    assert sorted(tensor_names(folder, quantisation=quantisation)) == sorted(tensor_names(plain))
    stored, expected = read_tensors(folder, quantisation=quantisation), read_tensors(plain)
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[each], expected[each]) for each in expected)
    assert stored["layers.0.mlp.up_proj.weight"].dtype == torch.bfloat16
    assert_alike(load_eagle(folder, tmp_path / "target"), load_eagle(plain, tmp_path / "target"))


def write_eagle(folder: Path) -> None:
    write_head(folder, EAGLE1["two layers"], SHAPE)


def write_mtp_within(folder: Path) -> None:
    write_target(folder, hidden=64, intermediate_size=128)
    write_mtp(folder, MTP["MiMo"])


KINDS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], Any]]] = {
    "eagle": (write_eagle, lambda folder: load_eagle(folder, folder.parent / "target")),
    "medusa": (lambda folder: write_medusa(folder, MEDUSA["vLLM"], hidden=64, hidden_size=64), load_medusa),
    "mlp-speculator": (
        lambda folder: write_speculator(folder, SPECULATORS["nothing shared, as large as the target"], width=64),
        load_mlp_speculator,
    ),
    "mtp": (write_mtp_within, lambda folder: load_mtp(folder, folder.parent / "target")),
}


@pytest.mark.parametrize("form", ["fp8 tensor", "pack4 g32", "awq g64"])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_of_all_kinds_may_be_quantised(kind: str, form: str, tmp_path: Path) -> None:
    write, load = KINDS[kind]
    write_target(tmp_path / "target", hidden=64)
    write(tmp_path / "head")
    linear_alone = replace(FORMS[form], ignore=("lm_head", "emb."))
    folder = write_quantised(tmp_path / "head", tmp_path / "quantised", linear_alone)
    assert method_of(folder) == kind
    assert_alike(load(folder), load(folder.with_name("quantised-plain")))


def test_pickled_files_are_read_too(tmp_path: Path) -> None:
    write_target(tmp_path / "target", hidden=64)
    write_head(tmp_path / "head", EAGLE3["layers.0"], SHAPE)
    folder = write_quantised(tmp_path / "head", tmp_path / "quantised", FORMS["pack4 g32"])
    expected = load_eagle(folder, tmp_path / "target")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert_alike(load_eagle(folder, tmp_path / "target"), expected)


@pytest.mark.parametrize(
    ("form", "put", "drop", "message"),
    [
        ("fp8 tensor", {}, "weight_scale", r"fc.weight has dtype F8_E4M3, and no scale"),
        ("fp8 tensor", {"weight_scale": torch.ones(3)}, "", r"fc.weight_scale is F32 of shape \[3\], expected"),
        ("fp8 tensor", {"weight_scale": torch.tensor(float("nan"))}, "", "fc.weight_scale"),
        ("fp8 tensor", {"qzeros": torch.zeros(2)}, "", "unexpected tensor fc.qzeros"),
        (
            "fp8 tensor",
            {"weight": torch.zeros(64, 192)},
            "",
            r"fc.weight is F32 of shape \[64, 192\], expected F8_E4M3",
        ),
        ("int8", {"weight": torch.zeros(3, dtype=torch.int8)}, "", r"fc.weight has shape \[3\], which is no weight's"),
        ("pack4 g32", {}, "weight_packed", "missing tensor fc.weight_packed"),
        ("pack4 g32", {}, "weight_shape", "missing tensor fc.weight_shape"),
        ("pack4 g32", {"weight_shape": torch.tensor([64, 193])}, "", "193 inputs are not a multiple of group_size, 32"),
        ("pack4 g32", {"weight_shape": torch.tensor([-64, 192])}, "", "fc.weight_packed is I32"),
        ("pack4 g32", {"weight_shape": torch.full((2,), float("nan"))}, "", "fc.weight_shape is torch.float32"),
        ("awq g64", {}, "qzeros", "missing tensor fc.qzeros"),
        ("gptq g64", {"g_idx": torch.arange(192).flip(0).int()}, "", "fc.g_idx"),
    ],
)
def test_what_is_no_quantised_weight_is_refused(
    form: str, put: dict[str, torch.Tensor], drop: str, message: str, tmp_path: Path
) -> None:
    write_target(tmp_path / "target", hidden=64)
    write_head(tmp_path / "head", EAGLE3["layers.0"], SHAPE)
    folder = write_quantised(tmp_path / "head", tmp_path / "quantised", FORMS[form])
    tensors = load_file(folder / "model.safetensors") | {f"fc.{part}": tensor for part, tensor in put.items()}
    tensors.pop(f"fc.{drop}", None)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_eagle(folder, tmp_path / "target")
