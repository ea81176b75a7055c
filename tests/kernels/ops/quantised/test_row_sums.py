"""`add_rows` goes on with the chains of `linear`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.linear import linear, pack_weight
from slipstream_kernels.ops.quantised.row_sums import add_rows


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 11, 12, 17])
def test_two_parts_give_the_bits_of_the_whole(rows: int) -> None:
    x = np.random.default_rng(rows).normal(size=(rows, 48)).astype(np.float32)
    packed = pack_weight(torch.randn(64, 48, generator=torch.Generator().manual_seed(rows)).bfloat16())
    sums = np.zeros((rows, 64), np.float32)
    for start, stop in ((0, 16), (16, 48)):
        add_rows(x.ctypes.data + start * 4, rows, 48, packed[0, start:].ctypes.data, stop - start, sums.ctypes.data)
    assert np.array_equal(sums.view(np.uint32), linear(x, packed).view(np.uint32))
