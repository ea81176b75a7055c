from __future__ import annotations

import numpy as np
import torch

from slipstream_kernels.ops.silu_mul import silu_mul, silu_mul_reference


def test_matches_float64() -> None:
    x = np.random.default_rng(0).normal(size=(7, 2 * 45)).astype(np.float32) * 6
    x[0, :4] = (-300, 300, 0, -87.5)
    expected = silu_mul_reference(torch.tensor(x).double()).numpy()
    np.testing.assert_allclose(silu_mul(x), expected, rtol=1e-6, atol=1e-30)


def test_elements_do_not_depend_on_their_place() -> None:
    """Vector lanes and the rest of a loop give the same bits."""
    values = np.random.default_rng(1).normal(size=33).astype(np.float32)
    expected = [silu_mul(np.array([[v, 1]], np.float32))[0, 0] for v in values]
    for size in (1, 7, 16, 33):
        row = np.concatenate([values[:size], np.ones(size, np.float32)])[None]
        assert np.array_equal(silu_mul(row)[0], expected[:size])
