from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numba import TypingError

from slipstream_kernels.jit.threads import Team
from slipstream_kernels.ops.philox import gumbel
from slipstream_kernels.ops.sampling import SamplingRows, sample, sample_reference
from support.sampling_rows import random_rows

VOCAB = 300


def random_logits(rows: int, vocab: int = VOCAB, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, vocab)).astype(np.float32) * 3


@pytest.mark.parametrize("seed", range(20))
def test_matches_the_reference_under_all_parameters(seed: int) -> None:
    logits, rows = random_logits(40, seed=seed), random_rows(40, VOCAB, seed=seed)
    before = logits.copy()
    assert np.array_equal(sample(logits, rows), sample_reference(logits, rows))
    assert np.array_equal(logits, before)


def test_rows_do_not_depend_on_their_company_or_the_threads() -> None:
    logits, rows = random_logits(30), random_rows(30, VOCAB, seed=1)
    expected = sample(logits, rows)
    team = Team(2)
    assert all(np.array_equal(sample(logits, rows, team=team), expected) for _ in range(5))
    for row in range(30):
        assert sample(logits[row : row + 1], one_row(rows, row))[0] == expected[row]


def one_row(rows: SamplingRows, row: int) -> SamplingRows:
    part: dict[str, np.ndarray] = {}
    for field in dataclasses.fields(rows):
        array = getattr(rows, field.name)
        if field.name.endswith("_offsets"):
            part[field.name] = array[row : row + 2]
        elif field.name in ("prompt_seen", "output_counts") or field.name.split("_")[0] in ("path", "bias", "mask"):
            part[field.name] = array
        else:
            part[field.name] = array[row : row + 1]
    return SamplingRows(**part)


def test_padded_logits_are_sampled_within_the_vocabulary() -> None:
    padded = np.full((3, VOCAB + 20), 1e9, np.float32)
    padded[:, :VOCAB] = random_logits(3)
    rows = SamplingRows.plain([4, 5, 6], temperature=1.0, seed=3)
    assert np.array_equal(sample(padded[:, :VOCAB], rows), sample(random_logits(3), rows))


def test_temperature_zero_takes_the_lowest_of_the_best() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, [17, 5, 200]] = 2
    assert sample(logits, SamplingRows.plain([0]))[0] == 5
    masked = dataclasses.replace(
        SamplingRows.plain([0]), mask_offsets=np.array([0, 1], np.int32), mask_ids=np.array([5], np.int32)
    )
    assert sample(logits, masked)[0] == 17


def test_noise_is_the_published_one() -> None:
    logits = random_logits(8)
    rows = SamplingRows.plain(np.arange(100, 108), temperature=0.7, seed=2**63 + 5, choice=2)
    noise = np.stack([gumbel(2**63 + 5, 2, position, np.arange(VOCAB)) for position in range(100, 108)])
    assert np.array_equal(sample(logits, rows), (logits / np.float32(0.7) + noise).argmax(1))


def test_distribution() -> None:
    """Chi-square over 20,000 positions against the exact distribution under top-p."""
    logits = np.log(np.array([0.3, 0.25, 0.2, 0.15, 0.06, 0.04], np.float32))
    n = 20_000
    tokens = sample(np.tile(logits, (n, 1)), SamplingRows.plain(np.arange(n), temperature=1.0, seed=9, top_p=0.89))
    expected = np.array([0.3, 0.25, 0.2, 0.15]) / 0.9 * n
    counts = np.bincount(tokens, minlength=6)
    assert not counts[4:].any()
    assert ((counts[:4] - expected) ** 2 / expected).sum() < 16.27  # 3 degrees of freedom, one in a thousand


@pytest.mark.parametrize(
    "change",
    [
        {"top_k": np.zeros(3, np.int32)},
        {"history": np.array([0, 0], np.int32)},
        {"bias_offsets": np.array([0, 1, 2], np.int32)},
        {"mask_offsets": np.array([0, 1, 1], np.int32), "mask_ids": np.array([VOCAB], np.int32)},
        {"path_offsets": np.array([2, 1, 0], np.int32), "path_tokens": np.array([1, 1], np.int32)},
    ],
)
def test_parameters_that_do_not_fit_are_refused(change: dict[str, np.ndarray]) -> None:
    rows = dataclasses.replace(SamplingRows.plain([0, 1]), **change)
    with pytest.raises(ValueError, match="do not fit"):
        sample(random_logits(2), rows)


def test_other_dtypes_are_refused() -> None:
    rows = dataclasses.replace(SamplingRows.plain([0]), temperature=np.zeros(1, np.float64))
    with pytest.raises(TypingError, match="expected C-contiguous float32"):
        sample(random_logits(1), rows)


def test_no_rows() -> None:
    assert sample(np.empty((0, VOCAB), np.float32), SamplingRows.plain([])).shape == (0,)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_row_with_what_is_no_number_decides_nothing(value: float, filters: dict, temperature: float) -> None:
    """Its neighbours decide what they would without it."""
    logits = np.random.default_rng(0).normal(size=(4, 100)).astype(np.float32)
    rows = SamplingRows.plain(np.arange(4), temperature=temperature, seed=3, **filters)
    expected = sample(logits, rows)
    logits[1, 77], logits[2] = value, -np.inf
    assert sample(logits, rows).tolist() == [expected[0], -1, -1, expected[3]]
    assert sample_reference(logits, rows).tolist() == [expected[0], -1, -1, expected[3]]
