from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.cache_scales import kv_form
from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.kv_dtype import KVDtype
from slipstream_kernels.models.kv_form import FLOAT, KVForm
from support.models import make_tiny_model
from support.quantised_models import FORMS, write_quantised

STATIC = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
KEY, VALUE = "model.layers.{}.self_attn.k_scale", "model.layers.{}.self_attn.v_scale"
SCALES = {KEY: 0.3, VALUE: 0.0125}


@pytest.fixture(scope="module")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fp8")
    return write_quantised(make_tiny_model(folder / "plain"), folder / "float", FORMS["float channel"])


def with_scales(
    source: Path, folder: Path, scheme: dict[str, Any] | None, changes: dict[str, torch.Tensor | None] | None = None
) -> Path:
    """The folder with scales of every layer, those of `changes` otherwise or, None, not there."""
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    if scheme is not None:
        config["quantization_config"]["kv_cache_scheme"] = scheme
    (folder / "config.json").write_text(json.dumps(config))
    scales = {name.format(layer): torch.tensor(scale) for name, scale in SCALES.items() for layer in range(2)}
    changed = {**scales, **(changes or {})}
    tensors = load_file(source / "model.safetensors") | {k: v for k, v in changed.items() if v is not None}
    save_file(tensors, folder / "model.safetensors")
    return folder


def form_of(folder: Path, dtype: KVDtype) -> KVForm:
    return kv_form(folder, ModelConfig.from_folder(folder), dtype)


def float32(scale: float) -> float:
    return torch.tensor(scale).item()


def test_scales_of_the_files_are_used(quantised: Path, tmp_path: Path) -> None:
    folder = with_scales(quantised, tmp_path / "model", STATIC)
    fixed = KVForm(fp8=True, scales=((float32(0.3), float32(0.0125)),) * 2)
    assert form_of(folder, "auto") == form_of(folder, "fp8") == form_of(folder, "fp8_e4m3") == fixed
    assert form_of(folder, "bfloat16") == form_of(folder, "float32") == FLOAT
    assert CausalLM.load(folder, kv_form=fixed).new_cache(num_pages=1, page_size=1, scratch_slots=0).fixed.any()


def test_without_a_scheme_or_scales_nothing_changes_unasked(quantised: Path, tmp_path: Path) -> None:
    assert form_of(quantised, "auto") == FLOAT
    assert form_of(quantised, "fp8") == KVForm(fp8=True)
    assert form_of(with_scales(quantised, tmp_path / "no scheme", None), "auto") == FLOAT
    none = dict.fromkeys(name.format(layer) for name in SCALES for layer in range(2))
    assert form_of(with_scales(quantised, tmp_path / "no scales", STATIC, none), "auto") == FLOAT
    dynamic = with_scales(quantised, tmp_path / "dynamic", STATIC | {"dynamic": True}, none)
    assert form_of(dynamic, "auto") == KVForm(fp8=True)
    for name, other in (("int", {"type": "int"}), ("heads", {"strategy": "attn_head"})):
        folder = with_scales(quantised, tmp_path / name, STATIC | other)
        assert form_of(folder, "auto") == FLOAT
        quantisation = ModelConfig.from_folder(folder).quantisation
        assert quantisation is not None and "kv_cache_scheme" in quantisation.notices[-1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "v_scale of layer 1 is missing, others are there"),
        (torch.tensor(float("nan")), "v_scale of layer 1 is nan, must be from"),
        (torch.tensor([0.0]), "v_scale of layer 1 is 0.0, must be from"),
        (torch.tensor(-1.0), "v_scale of layer 1 is -1.0, must be from"),
        (torch.ones(2), "model.layers.1.self_attn.v_scale is F32 [2], expected one number"),
        (torch.tensor(1), "model.layers.1.self_attn.v_scale is I64 [], expected one number"),
    ],
)
def test_scales_that_are_none_are_refused(
    quantised: Path, tmp_path: Path, change: torch.Tensor | None, words: str
) -> None:
    folder = with_scales(quantised, tmp_path / "model", STATIC, {VALUE.format(1): change})
    with pytest.raises(CheckpointError) as error:
        form_of(folder, "auto")
    assert words in str(error.value)
