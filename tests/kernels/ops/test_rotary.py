from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.rope import Rope
from slipstream_kernels.ops.rotary import rotary, rotary_reference


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_matches_the_reference_and_a_complex_product(head_dim: int) -> None:
    rng = np.random.default_rng(0)
    x, positions = rng.normal(size=(4, 3, head_dim)).astype(np.float32), np.array([0, 1, 77, 499], np.int32)
    table = Rope(10000.0).table(500, head_dim)
    got = rotary(x, positions, table)
    expected = rotary_reference(torch.tensor(x).double(), torch.tensor(positions), torch.tensor(table).double())
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6, atol=1e-6)
    half = head_dim // 2
    turn = np.exp(1j * positions[:, None] * 10000.0 ** (-np.arange(half) / half))[:, None]
    product = (x[..., :half] + 1j * x[..., half:]) * turn
    np.testing.assert_allclose(got, np.concatenate([product.real, product.imag], -1), atol=1e-5)
    assert np.array_equal(got[0], x[0])
