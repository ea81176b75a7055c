from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from slipstream_kernels.models.checkpoint.model_config import CheckpointError


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def test_fingerprint_covers_config_tokenizer_and_headers(folder: Path) -> None:
    first = fingerprint(folder)
    assert len(first.model) == len(first.tokenizer) == 64
    assert fingerprint(folder) == first

    config = folder / "config.json"
    config.write_text(config.read_text().replace("10000.0", "20000.0"))
    second = fingerprint(folder)
    assert second.tokenizer == first.tokenizer and second.model != first.model

    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    third = fingerprint(folder)
    assert third.tokenizer != second.tokenizer and third.model != second.model

    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    save_file(tensors | {"model.norm.weight": tensors["model.norm.weight"].float()}, weights)
    fourth = fingerprint(folder)
    assert fourth.tokenizer == third.tokenizer and fourth.model != third.model


def test_activations_in_e4m3_make_another_model(folder: Path) -> None:
    plain, other = fingerprint(folder), fingerprint(folder, fp8_activations=True)
    assert other.tokenizer == plain.tokenizer and other.model != plain.model


def test_fingerprint_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        fingerprint(tmp_path)
