"""Weights come to their places beside other work, and what is wrong with them is raised where they are waited for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.gpu.forward.weight_reader import WeightReader
from slipstream_kernels.models.gpu.forward.weights import GpuWeights


def reader(folder: Path) -> WeightReader:
    return WeightReader(folder, ModelConfig.from_folder(folder), "cpu", rank=0, size=1, progress=False)


def test_weights_are_those_that_are_loaded_at_once(tiny_model: Path) -> None:
    expected = GpuWeights.load(tiny_model, ModelConfig.from_folder(tiny_model), "cpu", progress=False)
    with reader(tiny_model) as reading:
        places = reading.weights.embedding.data_ptr(), reading.weights.layers[1].down.data_ptr()
        reading.wait()
        reading.wait()
    found = reading.weights
    assert (found.embedding.data_ptr(), found.layers[1].down.data_ptr()) == places
    for mine, own in zip(found.layers, expected.layers, strict=True):
        for name in ("input_norm", "qkv", "o", "post_norm", "gate_up", "down"):
            assert torch.equal(getattr(mine, name), getattr(own, name))
    assert torch.equal(found.embedding, expected.embedding)
    assert torch.equal(found.final_norm, expected.final_norm)


def test_what_is_wrong_with_them_is_raised_to_who_waits(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with reader(folder) as reading, pytest.raises(CheckpointError, match=r"model\.norm"):
        reading.wait()


def test_whoever_leaves_does_not_wait_for_the_rest(tiny_model: Path) -> None:
    with pytest.raises(ValueError, match="limits"), reader(tiny_model) as reading:
        raise ValueError("limits")
    assert reading._thread is not None
    assert not reading._thread.is_alive()
