from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.load_warnings import notices
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from support.models import make_tiny_model


def notices_of(folder: Path) -> list[str]:
    return notices(folder, ModelConfig.from_folder(folder))


def retyped(folder: Path, types: dict[str, torch.dtype]) -> Path:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor.to(types.get(name.split(".")[-2], tensor.dtype)) for name, tensor in tensors.items()}, path)
    return folder


@pytest.mark.parametrize("changes", [{}, {"family": "mistral", "overrides": {"sliding_window": 512}}])
def test_a_model_that_is_served_as_it_says_is_told_nothing_of(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert notices_of(make_tiny_model(tmp_path / "model", **changes)) == []


def test_wider_types_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_tiny_model(tmp_path / "model", layers=2)
    retyped(folder, {"q_proj": torch.float16, "k_proj": torch.float16, "norm": torch.float32})
    line = "4 tensors of float16 and 1 tensors of float32 are rounded to bfloat16, in which weights are held"
    assert notices_of(folder) == [line]
    CausalLM.load(folder)
    GpuWeights.load(folder, ModelConfig.from_folder(folder), "cpu", progress=False)
    assert caplog.messages == [f"{folder}: {line}"] * 2


def test_what_is_left_out_is_not_counted(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors |= {"lm_head.weight": tensors["model.embed_tokens.weight"].float(), "rotary_emb.inv_freq": torch.zeros(32)}
    save_file(tensors, folder / "model.safetensors")
    assert notices_of(folder) == []
