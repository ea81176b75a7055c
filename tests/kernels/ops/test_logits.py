from __future__ import annotations

import numpy as np
import pytest

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.ops.logits import argmax_row, process_reference
from slipstream_kernels.ops.sampling import SamplingRows, argmax
from support.sampling_rows import random_rows

VOCAB = 40


@kernel
def argmax_of(x: np.ndarray) -> int:
    return argmax_row(x.ctypes.data, len(x))


@pytest.mark.parametrize("size", [1, 5, 16, 17, 40])
def test_argmax_takes_the_lowest_of_equals(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(50):
        x = rng.integers(0, 4, size).astype(np.float32)
        assert argmax_of(x) == np.argmax(x)


@pytest.mark.parametrize("size", [1, 5, 16, 17, 40])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_nothing_is_chosen_beside_what_is_no_number(size: int, value: float) -> None:
    for place in range(size):
        x = np.linspace(-1, 1, size, dtype=np.float32)
        x[place] = value
        assert argmax_of(x) == -1
        x[place] = -np.inf
        assert argmax_of(x) == (np.argmax(x) if size > 1 else -1)
    assert argmax_of(np.full(size, -np.inf, np.float32)) == -1


def test_argmax_by_row() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 70)).astype(np.float32)
    assert np.array_equal(argmax(logits), logits.argmax(1))
    assert np.array_equal(argmax(logits[:, :33]), logits[:, :33].argmax(1))


def test_order_bias_penalties_mask_temperature() -> None:
    """One row by hand. The path [2, 2, 4] counts like output; token 1 is in the prompt, token 3 in the output."""
    rows = random_rows(1, VOCAB, seed=0, temperature=0.5)
    prompt_seen, output_counts = np.zeros((1, VOCAB), np.uint8), np.zeros((1, VOCAB), np.int32)
    prompt_seen[0, 1], output_counts[0, 3] = 1, 2
    rows = SamplingRows(
        **{
            field: getattr(rows, field)
            for field in ("position", "temperature", "top_k", "top_p", "min_p", "seed", "choice")
        },
        repetition=np.array([2.0], np.float32),
        presence=np.array([0.25], np.float32),
        frequency=np.array([0.5], np.float32),
        history=np.zeros(1, np.int32),
        prompt_seen=prompt_seen,
        output_counts=output_counts,
        path_offsets=np.array([0, 3], np.int32),
        path_tokens=np.array([2, 2, 4], np.int32),
        bias_offsets=np.array([0, 2], np.int32),
        bias_ids=np.array([0, 1], np.int32),
        bias_values=np.array([1.0, 3.0], np.float32),
        mask_offsets=np.array([0, 1], np.int32),
        mask_ids=np.array([5], np.int32),
    )
    logits = np.array([1, 1, 1, -1, 1, 9, 1] + [0] * (VOCAB - 7), np.float32)
    expected = np.array([2, 2, 0.5 - 1 - 0.25, -2 - 1 - 0.25, 0.5 - 0.5 - 0.25, -np.inf, 1] + [0] * (VOCAB - 7)) / 0.5
    assert np.array_equal(process_reference(logits, rows, 0), expected.astype(np.float32))
