from __future__ import annotations

import numpy as np
import pytest

from slipstream_kernels.ops.sampling import SamplingRows, gumbel, sample, top_candidates
from support.sampling_rows import random_rows

VOCAB = 200


def random_logits(rows: int) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=(rows, VOCAB)) * 2).astype(np.float32)


def log_softmax(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())


def test_without_rows_the_best_by_logits_lowest_id_first() -> None:
    logits = np.round(random_logits(10))
    ids, log_probs = top_candidates(logits, 12)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :12]
    assert np.array_equal(ids, order)
    for row in range(10):
        np.testing.assert_allclose(log_probs[row], log_softmax(logits[row])[order[row]], rtol=1e-5, atol=1e-6)


def test_under_noise_the_best_by_score() -> None:
    logits = random_logits(6)
    rows = SamplingRows.plain(np.arange(6), temperature=0.8, seed=4, choice=1)
    ids, log_probs = top_candidates(logits, 5, rows)
    for row in range(6):
        scaled = logits[row] / np.float32(0.8)
        scores = scaled + gumbel(4, 1, row, np.arange(VOCAB))
        assert ids[row].tolist() == np.argsort(-scores, kind="stable")[:5].tolist()
        np.testing.assert_allclose(log_probs[row], log_softmax(scaled)[ids[row]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(8))
def test_the_first_candidate_is_the_sample(seed: int) -> None:
    logits, rows = random_logits(30), random_rows(30, VOCAB, seed=seed)
    assert np.array_equal(top_candidates(logits, 3, rows)[0][:, 0], sample(logits, rows))


def test_places_left_by_the_filters_are_empty() -> None:
    ids, log_probs = top_candidates(random_logits(2), 4, SamplingRows.plain([0, 1], temperature=1.0, top_k=2))
    assert (ids[:, :2] >= 0).all() and (ids[:, 2:] == -1).all() and np.isneginf(log_probs[:, 2:]).all()


@pytest.mark.parametrize("k", [0, VOCAB + 1])
def test_refuses_k(k: int) -> None:
    with pytest.raises(ValueError, match=f"k is {k}"):
        top_candidates(random_logits(1), k)


@pytest.mark.parametrize("temperature", [None, 0.0, 0.8])
def test_a_row_with_what_is_no_number_has_no_candidates(temperature: float | None) -> None:
    logits = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    rows = None if temperature is None else random_rows(3, 50, seed=1, temperature=temperature)
    ids, log_probs = top_candidates(logits, 4, rows)
    logits[1, 7] = np.nan
    poisoned_ids, poisoned = top_candidates(logits, 4, rows)
    assert (poisoned_ids[1] == -1).all() and (poisoned[1] == -np.inf).all()
    assert np.array_equal(poisoned_ids[[0, 2]], ids[[0, 2]]) and np.array_equal(poisoned[[0, 2]], log_probs[[0, 2]])
