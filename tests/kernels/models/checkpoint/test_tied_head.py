"""Checkpoints whose config ties the head to the embedding and that store `lm_head.weight` nevertheless."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors, weight_bytes
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.models.gpu.forward.weights import GpuWeights
from support.models import make_tiny_model

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a model without a tie, then says in config.json that there is one."""

    def make(head: Callable[[torch.Tensor], torch.Tensor], *, shards: int = 1) -> Path:
        folder = make_tiny_model(tmp_path / "stored", family="qwen3", tied=False, shards=shards)
        files = [load_file(path) for path in sorted(folder.glob("*.safetensors"))]
        embedding = next(tensors[EMBEDDING] for tensors in files if EMBEDDING in tensors)
        for path, tensors in zip(sorted(folder.glob("*.safetensors")), files, strict=True):
            if HEAD in tensors:
                save_file(tensors | {HEAD: head(embedding).clone()}, path)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
        return folder

    return make


def logits(folder: Path) -> torch.Tensor:
    model = CausalLM.load(folder)
    cache = model.new_cache(num_pages=1, page_size=8, scratch_slots=0)
    return torch.from_numpy(model.forward(cache, RowBatch.chunk([5, 6, 7], 0, [0], 8)))


@pytest.mark.parametrize("shards", [1, 3])
def test_a_copy_of_the_embedding_is_left_out(
    make: Make, tmp_path: Path, shards: int, caplog: pytest.LogCaptureFixture
) -> None:
    stored, plain = make(torch.clone, shards=shards), make_tiny_model(tmp_path / "plain", family="qwen3")
    config = ModelConfig.from_folder(stored)
    assert config.tie_word_embeddings and load_tensors(stored, config).keys() == load_tensors(plain, config).keys()
    assert torch.equal(logits(stored), logits(plain))
    weights = GpuWeights.load(stored, config, "cpu", progress=False)
    assert weights.head.data_ptr() == weights.embedding.data_ptr()
    files = sum(path.stat().st_size for path in stored.glob("*.safetensors"))
    assert weight_bytes(stored, config) == files - 2 * config.vocab_size * config.hidden_size
    assert not caplog.messages


def test_a_copy_in_a_wider_type_is_a_copy(make: Make) -> None:
    assert ModelConfig.from_folder(make(torch.Tensor.float)).tie_word_embeddings


def test_another_head_is_used_and_told_of(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def last_row_differs(embedding: torch.Tensor) -> torch.Tensor:
        return torch.cat([embedding[:-1], -embedding[-1:]])

    stored, plain = make(last_row_differs), make_tiny_model(tmp_path / "plain", family="qwen3")
    ours, tied = logits(stored), logits(plain)
    assert [message for message in caplog.messages if str(stored) in message] == [
        f"{stored}: config.json ties lm_head.weight to the embedding, but the folder has another one, which is used"
    ]
    assert torch.equal(ours[:, :-1], tied[:, :-1]) and torch.equal(ours[:, -1], -tied[:, -1])
    config = ModelConfig.from_folder(stored)
    weights = GpuWeights.load(stored, config, "cpu", progress=False)
    assert torch.equal(weights.head, last_row_differs(weights.embedding))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (lambda embedding: embedding[:-1], r"lm_head.weight has shape \[511, 128\], expected \[512, 128\]"),
        (lambda embedding: embedding.to(torch.int8), "lm_head.weight has dtype I8"),
    ],
)
def test_a_head_that_fits_nothing_is_named(
    make: Make, head: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    folder = make(head)
    with pytest.raises(CheckpointError, match=message):
        load_tensors(folder, ModelConfig.from_folder(folder))


def test_tensors_without_rows_are_refused_by_their_shape(make: Make) -> None:
    folder = make(torch.clone)
    path = folder / "model.safetensors"
    save_file(load_file(path) | {EMBEDDING: torch.ones(()), HEAD: torch.ones(())}, path)
    with pytest.raises(
        CheckpointError, match=r"model.embed_tokens.weight has shape \[\]|lm_head.weight has shape \[\]"
    ):
        load_tensors(folder, ModelConfig.from_folder(folder))


def test_a_config_without_weights_is_believed(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert ModelConfig.from_folder(folder).tie_word_embeddings
