from __future__ import annotations

import numpy as np
import torch

from slipstream_kernels.ops.soft_cap import soft_capped, soft_capped_reference


def test_matches_torch() -> None:
    x = np.linspace(-200, 200, 5001, dtype=np.float32).reshape(3, -1)
    found = soft_capped(x, 30.0)
    np.testing.assert_allclose(found, soft_capped_reference(torch.from_numpy(x).double(), 30.0), rtol=1e-5, atol=1e-5)
    assert np.abs(found).max() <= 30 and np.array_equal(soft_capped(-x, 30.0), -found)


def test_what_is_infinite_is_bounded_and_what_is_no_number_stays_none() -> None:
    found = soft_capped(np.array([0.0, np.inf, -np.inf, np.nan], np.float32), 2.0)
    assert found[:3].tolist() == [0.0, 2.0, -2.0] and np.isnan(found[3])
