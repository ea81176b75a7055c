"""Texts that a target writes, and its states."""

from __future__ import annotations

import numpy as np
import pytest

from draft_service.target_text import load_target, write_texts
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.models.boundaries import Capture, boundaries_of
from slipstream_kernels.models.row_batch import RowBatch
from support.models import EOS_ID

LARGE = 1 << 30


def test_states_and_likeliest_tokens_are_those_of_a_pass_over_the_text(tiny_model):
    model, facts = load_target(tiny_model, 1, LARGE)
    text = write_texts(model, 3, 12, lambda: True)
    known = boundaries_of(model.config.num_layers)
    assert (facts.num_layers, facts.feature_boundaries) == (model.config.num_layers, tuple(known))
    assert text.tokens.shape == (3, 12)
    assert len({tuple(line) for line in text.tokens.tolist()}) == 3
    assert EOS_ID not in text.tokens[:, 1:]
    for line in range(3):
        capture = Capture.of(known, 12, num_layers=model.config.num_layers, hidden_size=model.config.hidden_size)
        cache = model.new_cache(num_pages=1, page_size=12, scratch_slots=0)
        logits = model.forward(cache, RowBatch.chunk(text.tokens[line].tolist(), 0, [0], 12), capture)
        assert np.array_equal(text.states[line].reshape(12, -1), capture.rows)
        assert np.array_equal(text.likeliest[line], logits[:, : model.config.vocab_size].argmax(axis=1))
    assert np.array_equal(text.columns(5, (2, 0))[1], text.states[1, 5, [2, 0]].flatten())
    again = write_texts(model, 3, 12, lambda: True)
    assert np.array_equal(again.tokens, text.tokens)


def test_texts_end_early_where_time_does(tiny_model):
    model, _ = load_target(tiny_model, 1, LARGE)
    left = iter([True, True, False])
    text = write_texts(model, 2, 12, lambda: next(left))
    assert text.tokens.shape == text.likeliest.shape == text.states.shape[:2] == (2, 3)


def test_what_cannot_be_loaded_is_refused(tiny_model, tmp_path):
    with pytest.raises(FailedPreconditionError, match=r"neither model\.safetensors"):
        load_target(tmp_path, 1, LARGE)
    with pytest.raises(FailedPreconditionError, match="MiB of weights, at most 0 are loaded"):
        load_target(tiny_model, 1, 1000)
