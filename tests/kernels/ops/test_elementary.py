from __future__ import annotations

import numpy as np
import pytest

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.ops import elementary


@kernel
def exponentials(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(x)):
        out[i] = elementary.exp(x[i])


@kernel
def logarithms(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(x)):
        out[i] = elementary.log(x[i])


@kernel
def exponential_total(x: np.ndarray, shift: np.float32) -> float:
    return elementary.exp_total(x.ctypes.data, len(x), shift)


def apply(function: object, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    function(x, out)
    return out


def test_exp_is_accurate_to_two_units() -> None:
    x = np.concatenate([np.linspace(-87, 88, 200_001), np.linspace(-1e-3, 1e-3, 1001)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    error = np.abs(apply(exponentials, x) - exact) / np.spacing(exact.astype(np.float32))
    assert error.max() < 2
    assert apply(exponentials, np.array([0, -1000, 1000, -np.inf], np.float32)) == pytest.approx(
        [1, np.exp(-87), np.exp(88), np.exp(-87)], rel=1e-6
    )


def test_log_is_accurate_near_one_and_everywhere() -> None:
    near_one = 1 - np.arange(1, 4001) * 2.0**-24
    x = np.concatenate([near_one, 1 / near_one, np.logspace(-300, 300, 5001), np.random.default_rng(0).random(20_000)])
    exact = np.log(x)
    assert (np.abs(apply(logarithms, x) - exact) <= 1e-14 * np.abs(exact)).all()
    assert apply(logarithms, np.array([1.0]))[0] == 0


@pytest.mark.parametrize("size", [1, 7, 8, 33])
def test_results_do_not_depend_on_the_lane(size: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=100).astype(np.float32) * 9, rng.random(100)
    for start in range(0, 100 - size, 5):
        part = slice(start, start + size)
        assert np.array_equal(apply(exponentials, x[part].copy()), apply(exponentials, x)[part])
        assert np.array_equal(apply(logarithms, y[part].copy()), apply(logarithms, y)[part])


def test_exp_total() -> None:
    x = np.random.default_rng(0).normal(size=160).astype(np.float32)
    assert exponential_total(x, np.float32(1.5)) == pytest.approx(np.exp(x.astype(np.float64) - 1.5).sum(), rel=1e-6)
