"""Keys and values of 8 bits: rounded before anyone reads them, whoever that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream_kernels.models.capture_layers import Capture, boundaries_of
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.invariance import probe_row_invariance
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.models.kv_form import KVForm

OWN = KVForm(fp8=True)
LAYERS = 2
FIXED = KVForm(fp8=True, scales=((0.0625, 0.01171875),) * LAYERS)
FORMS = pytest.mark.parametrize("form", [OWN, FIXED], ids=["own", "fixed"])
TOKENS = np.random.default_rng(0).integers(0, 250, 90).tolist()


def logits_of(model: CausalLM, cuts: list[int], page_size: int = 16) -> np.ndarray:
    count = -(-len(TOKENS) // page_size)
    pages = np.random.default_rng(page_size).permutation(count).tolist()
    cache = model.new_cache(num_pages=count, page_size=page_size, scratch_slots=0)
    cache.keys[...] = cache.values[...] = 0x7F if model.kv_form.fp8 else np.nan
    parts, start = [], 0
    for size in [*cuts, len(TOKENS) - sum(cuts)]:
        parts.append(model.forward(cache, RowBatch.chunk(TOKENS[start : start + size], start, pages, page_size)))
        start += size
    return np.concatenate(parts)


@FORMS
def test_chunks_pages_and_trees_change_no_bit(tiny_model: Path, form: KVForm) -> None:
    model = CausalLM.load(tiny_model, kv_form=form)
    assert model.config.num_layers == LAYERS
    whole = logits_of(model, [])
    for cuts, page_size in (([1] * 89, 16), ([16] * 5, 1), ([7, 40], 7)):
        assert np.array_equal(logits_of(model, cuts, page_size), whole)
    assert probe_row_invariance(model)


@FORMS
def test_logits_are_near_those_of_float32(tiny_model: Path, form: KVForm) -> None:
    """Of elements rounded to 4 bits, by 2^-4 of themselves at most."""
    exact = logits_of(CausalLM.load(tiny_model), [])
    coded = logits_of(CausalLM.load(tiny_model, kv_form=form), [])
    assert not np.array_equal(exact, coded)
    error = coded - exact
    assert error.std() < 0.08 * exact.std() and np.abs(error).max() < 0.4 * exact.std()


@FORMS
def test_a_copied_slot_is_read_as_the_one_that_was_written(tiny_model: Path, form: KVForm) -> None:
    model = CausalLM.load(tiny_model, kv_form=form)
    cache = model.new_cache(num_pages=4, page_size=16, scratch_slots=2)
    expected = model.forward(cache, RowBatch.chunk(TOKENS[:40], 0, [0, 1, 2], 16))[-1]
    cache.copy_slots(np.arange(16, 32, dtype=np.int32), np.arange(48, 64, dtype=np.int32))
    cache.keys[:, :, 16:32] = cache.values[:, :, 16:32] = 0x7F
    cache.key_scales[:, :, 16:32] = cache.value_scales[:, :, 16:32] = 0
    assert np.array_equal(model.forward(cache, RowBatch.chunk(TOKENS[39:40], 39, [0, 3, 2], 16))[0], expected)
    with pytest.raises(IndexError):
        cache.copy_slots(np.array([66], np.int32), np.array([0], np.int32))


def test_states_at_boundaries_are_those_of_single_rows(tiny_model: Path) -> None:
    model = CausalLM.load(tiny_model, kv_form=OWN)
    boundaries = tuple(boundaries_of(model.config.num_layers))

    def states(cuts: list[int]) -> np.ndarray:
        cache, parts, start = model.new_cache(num_pages=6, page_size=16, scratch_slots=0), [], 0
        for size in cuts:
            capture = Capture.of(boundaries, size, num_layers=LAYERS, hidden_size=model.config.hidden_size)
            model.forward(cache, RowBatch.chunk(TOKENS[start : start + size], start, list(range(6)), 16), capture)
            parts.append(capture.rows.copy())
            start += size
        return np.concatenate(parts)

    assert np.array_equal(states([30]), states([1] * 30))


def test_pages_are_smaller(tiny_model: Path) -> None:
    model, plain = CausalLM.load(tiny_model, kv_form=OWN), CausalLM.load(tiny_model)
    cache = model.new_cache(num_pages=3, page_size=5, scratch_slots=2)
    assert cache.nbytes == model.kv_bytes_per_token() * cache.num_slots
    head_dim = model.config.head_dim
    assert model.kv_bytes_per_token() * 4 * head_dim == plain.kv_bytes_per_token() * (head_dim + 4)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2.0**-101, 2.0**120])
def test_scales_that_no_row_can_have_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match=r"v_scale of layer 1 is .*, must be from"):
        KVForm(fp8=True, scales=((1.0, 1.0), (1.0, scale)))
