from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.rotary import Llama3Scaling, rotary, rotary_reference, rotary_table


@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_matches_the_reference_and_a_complex_product(head_dim: int) -> None:
    rng = np.random.default_rng(0)
    x, positions = rng.normal(size=(4, 3, head_dim)).astype(np.float32), np.array([0, 1, 77, 499], np.int32)
    table = rotary_table(500, head_dim, 10000.0)
    got = rotary(x, positions, table)
    expected = rotary_reference(torch.tensor(x).double(), torch.tensor(positions), torch.tensor(table).double())
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6, atol=1e-6)
    half = head_dim // 2
    turn = np.exp(1j * positions[:, None] * 10000.0 ** (-np.arange(half) / half))[:, None]
    product = (x[..., :half] + 1j * x[..., half:]) * turn
    np.testing.assert_allclose(got, np.concatenate([product.real, product.imag], -1), atol=1e-5)
    assert np.array_equal(got[0], x[0])


def test_the_table_is_the_same_in_parts_and_as_a_whole() -> None:
    frequencies = np.array([500000.0 ** (-2 * i / 64) for i in range(32)])
    angles = np.arange(9001, dtype=np.float64)[:, None] * frequencies
    whole = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert np.array_equal(rotary_table(9001, 64, 500000.0).view(np.uint32), whole.view(np.uint32))


def test_llama3_scaling_keeps_high_and_divides_low_frequencies() -> None:
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64)
    turn = 2 * math.pi / 64
    assert scaling.scaled(5 * turn) == 5 * turn
    assert scaling.scaled(0.5 * turn) == 0.5 * turn / 8
    middle = scaling.scaled(2.5 * turn)
    assert middle == pytest.approx(0.5 * 2.5 * turn / 8 + 0.5 * 2.5 * turn)
    assert not np.array_equal(rotary_table(9, 16, 1e4, scaling), rotary_table(9, 16, 1e4))
