from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.rms_norm import rms_norm, rms_norm_reference


@pytest.mark.parametrize("size", [16, 48, 384])
def test_matches_float64(size: int) -> None:
    rng = np.random.default_rng(size)
    x, weight = rng.normal(size=(5, size)).astype(np.float32) * 3, rng.normal(size=size).astype(np.float32)
    expected = rms_norm_reference(torch.tensor(x).double(), torch.tensor(weight).double(), 1e-5)
    np.testing.assert_allclose(rms_norm(x, weight, 1e-5), expected.numpy(), rtol=1e-6, atol=1e-6)


def test_rows_stand_alone() -> None:
    x, weight = np.random.default_rng(0).normal(size=(9, 64)).astype(np.float32), np.ones(64, np.float32)
    together = rms_norm(x, weight, 1e-6)
    assert all(np.array_equal(rms_norm(x[i : i + 1], weight, 1e-6)[0], together[i]) for i in range(9))


@pytest.mark.parametrize(("columns", "weights"), [(17, 17), (32, 16)])
def test_refuses_shapes(columns: int, weights: int) -> None:
    with pytest.raises(ValueError, match="multiple of 16"):
        rms_norm(np.zeros((1, columns), np.float32), np.zeros(weights, np.float32), 1e-5)
