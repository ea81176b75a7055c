from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.ops.linear import BLOCK, ROW_GROUP, linear, linear_reference, pack_weight, padded

ROWS = 2 * ROW_GROUP + 7
INPUTS = 80


def random_weight(outputs: int, inputs: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(seed)).bfloat16()


def random_rows(rows: int, inputs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, inputs)).astype(np.float32)


@pytest.mark.parametrize(("outputs", "inputs"), [(64, 16), (128, 144), (100, 48), (16, 384), (200, 1)])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 11, 13, ROW_GROUP, ROW_GROUP + 1])
def test_matches_float64(outputs: int, inputs: int, rows: int) -> None:
    weight, x = random_weight(outputs, inputs), random_rows(rows, inputs)
    bias = np.zeros(padded(outputs), np.float32)
    bias[:outputs] = np.arange(outputs)
    y = linear(x, pack_weight(weight), bias)
    expected = linear_reference(torch.tensor(x).double(), weight, torch.tensor(bias[:outputs]))
    assert y.shape == (rows, padded(outputs))
    np.testing.assert_allclose(y[:, :outputs], expected.numpy(), rtol=1e-5, atol=1e-4)
    assert not y[:, outputs:].any()


def test_is_one_chain_of_fused_additions_from_zero() -> None:
    """Exact products in float64, rounded once a step: the definition, element by element."""
    weight, x = random_weight(64, 40), random_rows(7, 40)
    wide = weight.double().numpy()
    y = np.zeros((7, 64), np.float32)
    for k in range(40):
        # A product of 24 and 8 bits is exact in float64; its sum is rounded to 53 bits, then to 24.
        y = (x[:, k : k + 1].astype(np.float64) * wide[:, k] + y).astype(np.float32)
    got = linear(x, pack_weight(weight))
    assert (got != y).mean() < 0.001  # double rounding in the model above
    np.testing.assert_allclose(got, y, rtol=1e-6, atol=1e-6)


@given(rows=st.integers(1, 60), start=st.integers(0, ROWS - 60), neighbours=st.integers(0, 5))
@settings(max_examples=60)
def test_rows_do_not_depend_on_their_company(rows: int, start: int, neighbours: int) -> None:
    weight, x = pack_weight(random_weight(70, INPUTS)), random_rows(ROWS, INPUTS)
    expected = linear(x, weight)[start : start + rows]
    part = x[start : start + rows].copy()
    assert np.array_equal(linear(part, weight), expected)
    strangers = np.full((neighbours, INPUTS), np.nan, np.float32)
    mixed = linear(np.concatenate([strangers, part, strangers]), weight)
    assert np.array_equal(mixed[neighbours : neighbours + rows], expected)


def test_packing_keeps_every_weight() -> None:
    weight = random_weight(130, 32)
    packed = pack_weight(weight)
    assert packed.shape == (3, 32, BLOCK) and packed.ctypes.data % 64 == 0
    one_hot = np.eye(32, dtype=np.float32)
    assert np.array_equal(linear(one_hot, packed)[:, :130].T, weight.float().numpy())


def test_refuses_other_widths() -> None:
    with pytest.raises(ValueError, match="x has 16 columns, the weight has 32"):
        linear(np.zeros((1, 16), np.float32), pack_weight(random_weight(64, 32)))


def test_no_rows() -> None:
    assert linear(np.zeros((0, 32), np.float32), pack_weight(random_weight(64, 32))).shape == (0, 64)
