from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors, weight_files
from support.models import make_tiny_model

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def load(folder: Path) -> Tensors:
    return load_tensors(folder, ModelConfig.from_folder(folder))


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_one_file_and_shards_hold_the_same(tmp_path: Path) -> None:
    whole = load(make_tiny_model(tmp_path / "whole", family="qwen3", tied=False))
    sharded = make_tiny_model(tmp_path / "sharded", family="qwen3", tied=False, shards=3)
    assert len(weight_files(sharded)) == 3
    parts = load(sharded)
    assert whole.keys() == parts.keys() and all(torch.equal(whole[name], parts[name]) for name in whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "1 tensors are missing, the first is model.norm.weight"),
        (lambda t: t.update(extra=torch.zeros(1)), "unexpected tensor extra"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(64)}), r"has shape \[64\], expected \[128\]"),
        (lambda t: t.update({"model.norm.weight": torch.zeros(128, dtype=torch.int8)}), "has dtype I8"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder: Path, change: Callable[[Tensors], object], message: str) -> None:
    rewrite(folder, change)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


@pytest.mark.parametrize(
    "name", ["model.mtp_layers.0.input_proj.weight", "model.layers.2.eh_proj.weight", "model.layers.2.mlp.up_proj.bias"]
)
def test_layers_that_predict_further_tokens_are_left_out(name: str, tmp_path: Path) -> None:
    plain = load(make_tiny_model(tmp_path / "qwen2", family="qwen2"))
    folder = make_tiny_model(tmp_path / "mimo", family="mimo", overrides={"num_nextn_predict_layers": 1})
    rewrite(folder, lambda t: t.update({name: torch.zeros(3, dtype=torch.int8)}))
    tensors = load(folder)
    assert ModelConfig.from_folder(folder).num_mtp_layers == 1
    assert tensors.keys() == plain.keys() and all(torch.equal(tensors[each], plain[each]) for each in plain)
    rewrite(folder, lambda t: t.update({name.replace(".0.", ".1.").replace(".2.", ".3."): torch.zeros(1)}))
    with pytest.raises(CheckpointError, match="unexpected tensor"):
        load(folder)


@pytest.mark.parametrize(
    "name", ["model.layers.1.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "rotary_emb.inv_freq"]
)
def test_buffers_that_the_config_determines_are_left_out(folder: Path, name: str) -> None:
    before = load(folder)
    rewrite(folder, lambda t: t.update({name: torch.zeros(32)}))
    assert load(folder).keys() == before.keys()


def test_wider_types_are_rounded(folder: Path) -> None:
    before = load(folder)
    rewrite(folder, lambda t: t.update({name: tensor.float() for name, tensor in t.items()}))
    assert all(torch.equal(tensor, before[name]) for name, tensor in load(folder).items())


def test_broken_files(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="neither"):
        load(folder)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "weight_map is missing"),
        ({"weight_map": {"a": "../a.safetensors"}}, "outside the folder"),
        ({"weight_map": {"a": "gone.safetensors"}}, "gone"),
    ],
)
def test_broken_index(folder: Path, index: dict[str, object], message: str) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=message):
        load(folder)
