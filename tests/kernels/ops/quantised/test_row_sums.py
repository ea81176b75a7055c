"""`add_rows` and `add_pairs` go on with the chains of `linear`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.linear import linear, pack_weight
from slipstream_kernels.ops.quantised.row_sums import add_pairs, add_rows

INPUTS = 48


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 11, 12, 17])
@pytest.mark.parametrize("paired", [False, True])
def test_two_parts_give_the_bits_of_the_whole(rows: int, paired: bool) -> None:
    x = np.random.default_rng(rows).normal(size=(rows, INPUTS)).astype(np.float32)
    weight = torch.randn(64, INPUTS, generator=torch.Generator().manual_seed(rows)).bfloat16()
    packed = pack_weight(weight)
    pairs = weight.view(torch.uint16).numpy().reshape(64, INPUTS // 2, 2).transpose(1, 0, 2)
    held = np.ascontiguousarray(pairs).reshape(INPUTS, 64) if paired else packed[0]
    sums = np.zeros((rows, 64), np.float32)
    for start, stop in ((0, 16), (16, INPUTS)):
        at, w, beyond = x.ctypes.data + start * 4, held[start:].ctypes.data, 1 << 50  # may lie anywhere
        (add_pairs if paired else add_rows)(at, rows, INPUTS, w, stop - start, sums.ctypes.data, beyond, 64)
    assert np.array_equal(sums.view(np.uint32), linear(x, packed).view(np.uint32))
