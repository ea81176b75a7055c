from __future__ import annotations

import numpy as np
import torch

from slipstream_kernels.ops.experts.clamped_swiglu import clamped_swiglu, clamped_swiglu_reference


def test_matches_float64() -> None:
    x = np.random.default_rng(0).normal(size=(7, 2 * 45)).astype(np.float32) * 6
    x[0, :4], x[0, 45:49] = (-300, 300, 7, -87.5), (300, -300, -7, 0)
    expected = clamped_swiglu_reference(torch.tensor(x).double(), 7.0).numpy()
    np.testing.assert_allclose(clamped_swiglu(x, 7.0), expected, rtol=1e-5, atol=1e-30)


def test_nan_stays() -> None:
    found = clamped_swiglu(np.array([[np.nan, 1, 1, np.nan]], np.float32), 7.0)
    assert np.isnan(found).all()
