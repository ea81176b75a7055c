from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.ops.filters import BUCKETS, filter_reference, filter_row
from slipstream_kernels.ops.logits import argmax_row


@kernel
def _filter(
    x: np.ndarray,
    top_k: int,
    top_p: np.float32,
    min_p: np.float32,
    ids: np.ndarray,
    weights: np.ndarray,
    scratch: np.ndarray,
) -> int:
    peak = x[argmax_row(x.ctypes.data, len(x))]
    return filter_row(
        x.ctypes.data, len(x), top_k, top_p, min_p, peak, ids.ctypes.data, weights.ctypes.data, scratch.ctypes.data
    )


def candidates(x: np.ndarray, top_k: int = 0, top_p: float = 1, min_p: float = 0) -> list[int]:
    ids, weights = np.empty(len(x), np.int32), np.empty(len(x), np.float32)
    scratch = np.empty(BUCKETS + len(x) + 1, np.float64)
    return ids[: _filter(x, top_k, np.float32(top_p), np.float32(min_p), ids, weights, scratch)].tolist()


def test_nothing_is_filtered_but_minus_infinity() -> None:
    assert candidates(np.array([0, -np.inf, 5, -np.inf], np.float32)) == [0, 2]


@given(
    x=hnp.arrays(np.float32, st.integers(1, 200), elements=st.sampled_from([-np.inf, -50, -1, -0.5, 0, 0.25, 0.26, 3])),
    top_k=st.integers(1, 210),
)
@settings(max_examples=100)
def test_top_k_breaks_ties_by_the_lowest_id(x: np.ndarray, top_k: int) -> None:
    x[0] = 0
    assert candidates(x, top_k=top_k) == filter_reference(x, top_k, 1, 0).tolist()


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 400), scale=st.sampled_from([0.001, 1, 20]))
@settings(max_examples=150)
def test_all_filters_match_a_full_sort(seed: int, size: int, scale: float) -> None:
    """Ties included: logits are rounded to multiples of 1/8."""
    rng = np.random.default_rng(seed)
    x = (np.round(rng.normal(size=size) * 8) / 8 * scale).astype(np.float32)
    top_k, top_p = int(rng.integers(0, size + 2)), float(np.float32(rng.uniform(0.01, 1)))
    min_p = float(np.float32(rng.choice([0, 0.013, 0.2])))
    assert candidates(x, top_k, top_p, min_p) == filter_reference(x, top_k, top_p, min_p).tolist()


@pytest.mark.parametrize(("top_p", "kept"), [(0.0, 1), (0.25, 1), (0.2501, 2), (0.5, 2), (0.75, 3), (0.76, 4)])
def test_top_p_keeps_the_shortest_prefix(top_p: float, kept: int) -> None:
    assert candidates(np.zeros(4, np.float32), top_p=top_p) == list(range(kept))


def test_sorted_and_reversed_edges() -> None:
    """Thousands of candidates in one bucket."""
    x = np.linspace(0, 0.001, 3000).astype(np.float32)
    for row in (x, x[::-1].copy()):
        for top_k in (1, 7, 1500, 2999):
            assert candidates(row, top_k=top_k) == filter_reference(row, top_k, 1, 0).tolist()
