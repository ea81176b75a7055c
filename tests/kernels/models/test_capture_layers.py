from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from slipstream_kernels.models.capture_layers import Capture, boundaries_of, usual_boundaries
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from support.models import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("boundaries") / "model", layers=3, hidden_size=144, family="qwen3")


@pytest.fixture(scope="module")
def model(folder: Path) -> CausalLM:
    return CausalLM.load(folder)


def capture_of(model: CausalLM, boundaries: list[int], rows: int) -> Capture:
    capture = Capture.of(boundaries, rows, num_layers=model.config.num_layers, hidden_size=model.config.hidden_size)
    capture.rows[...] = 0xFFFF  # NaN
    return capture


def as_tensor(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits).view(torch.bfloat16)


def run(
    model: CausalLM, tokens: list[int], boundaries: list[int], sizes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Logits and captured rows of a prompt that is computed in chunks."""
    cache = model.new_cache(num_pages=8, page_size=16, scratch_slots=0)
    logits, states, start = [], [], 0
    for size in sizes:
        rows = RowBatch.chunk(tokens[start : start + size], start, range(8), 16)
        capture = capture_of(model, boundaries, size) if boundaries else None
        logits.append(model.forward(cache, rows, capture))
        states += [] if capture is None else [capture.rows]
        start += size
    return np.concatenate(logits), np.concatenate(states) if states else np.zeros(0)


def test_states_are_those_of_transformers(folder: Path, model: CausalLM) -> None:
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, 70).tolist()
    twin = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        outputs = twin(torch.tensor([tokens]), output_hidden_states=True)
        streams = [stream[0] for stream in outputs.hidden_states]
    size = model.config.hidden_size
    wanted = [4, 1, 0, 2]  # any order; 4 is behind the final norm, as is the last stream of transformers
    _, states = run(model, tokens, wanted, (40, 1, 29))
    for place, stream in enumerate((streams[3], streams[1], streams[0], streams[2])):
        found = as_tensor(states[:, place * size : (place + 1) * size].copy())
        np.testing.assert_allclose(found.float(), stream, rtol=2**-7, atol=1e-5)
    _, last = run(model, tokens, [3, 4], (70,))
    before = as_tensor(last[:, :size].copy()).float()
    normed = twin.model.norm(before)
    np.testing.assert_allclose(as_tensor(last[:, size:].copy()).float(), normed.detach(), rtol=0.03, atol=0.03)


def test_the_first_boundary_is_the_embedding(folder: Path, model: CausalLM) -> None:
    _, states = run(model, list(range(7, 60)), [3, 0], (53,))
    table = load_tensors(folder, model.config)["model.embed_tokens.weight"]
    assert torch.equal(as_tensor(states[:, model.config.hidden_size :].copy()), table[7:60])


def test_logits_and_states_keep_their_bits(model: CausalLM) -> None:
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, 50).tolist()
    plain, _ = run(model, tokens, [], (50,))
    logits, states = run(model, tokens, [0, 2, 3, 4], (50,))
    assert np.array_equal(plain.view(np.uint32), logits.view(np.uint32))
    chunked = run(model, tokens, [0, 2, 3, 4], (9, 1, 40))[1]
    assert np.array_equal(states, chunked)


def test_a_pass_that_asks_for_nothing_follows_one_that_did(model: CausalLM) -> None:
    capture = capture_of(model, [1], 5)
    cache = model.new_cache(num_pages=1, page_size=16, scratch_slots=0)
    rows = RowBatch.chunk([1, 2, 3, 4, 5], 0, [0], 16)
    model.forward(cache, rows, capture)
    kept = capture.rows.copy()
    model.forward(cache, dataclasses.replace(rows, token_ids=rows.token_ids + np.int32(1)))
    assert np.array_equal(kept, capture.rows)


def test_what_cannot_be_captured_is_refused(model: CausalLM) -> None:
    assert list(boundaries_of(3)) == [0, 1, 2, 3, 4]
    for boundaries in ([5], [-1], [1, 1]):
        with pytest.raises(ValueError, match="boundaries"):
            capture_of(model, boundaries, 1)
    cache = model.new_cache(num_pages=1, page_size=16, scratch_slots=0)
    with pytest.raises(ValueError, match="rows"):
        model.forward(cache, RowBatch.chunk([1, 2], 0, [0], 16), capture_of(model, [1], 1))


def test_passes_one_after_another_leave_states_in_the_same_room_and_passes_in_between_none(model: CausalLM) -> None:
    tokens = np.random.default_rng(1).integers(0, model.config.vocab_size, 30).tolist()
    _, apart = run(model, tokens, [1, 4], (20, 6, 4))
    cache, capture = model.new_cache(num_pages=8, page_size=16, scratch_slots=0), capture_of(model, [1, 4], 20)
    start = 0
    for size in (20, 6, 4):
        model.forward(cache, RowBatch.chunk(tokens[start : start + size], start, range(8), 16), capture)
        kept = capture.rows.copy()
        np.testing.assert_array_equal(kept[:size], apart[start : start + size])
        model.last_logits(np.array([0, size - 1], np.int32))
        model.forward(cache, RowBatch.chunk(tokens[:5], 0, range(8), 16))
        np.testing.assert_array_equal(capture.rows, kept)
        start += size


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("eagle3", (2, 16, 29)), *((kind, (33,)) for kind in ("eagle", "mtp", "medusa", "mlp-speculator")), ("ngram", ())],
)
def test_kinds_of_heads_usually_read_what_they_were_published_with(kind: str, expected: tuple[int, ...]) -> None:
    assert usual_boundaries(kind, 32) == expected
