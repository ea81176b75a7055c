"""What kernels on a CPU take, and how it lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.quantised.packing import LEAST_SCALE, can_pack, pack_quantised
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from support.quantised_weights import NUMBERS, random_weight


def test_sizes_that_cannot_be_packed() -> None:
    assert not can_pack(random_weight("int8", 8, 20, group=20))
    assert not can_pack(random_weight("int8", 8, 64, group=4))


@pytest.mark.parametrize("number", [*NUMBERS, "e2m1"])
def test_scales_that_would_make_denormal_weights_cannot_be_packed(number: Any) -> None:
    weight = random_weight(number, 8, 32, group=32, dtype=torch.float32)
    weight.scales[3], weight.scales[4] = LEAST_SCALE[weight.number], 0
    assert can_pack(weight)
    weight.scales[3] = -LEAST_SCALE[weight.number] * 0.999
    assert not can_pack(weight)


def test_large_scales_of_e4m3_cannot_be_packed() -> None:
    weight = random_weight("e4m3", 8, 32, group=32, dtype=torch.float32)
    weight.scales[5] = -128
    assert not can_pack(weight)


def test_rows_lie_as_the_outputs_of_linear_do() -> None:
    codes = torch.arange(64, dtype=torch.uint8)[:, None].repeat(1, 8)
    packed = pack_quantised(QuantisedWeight("int8", codes, torch.arange(1.0, 65)[:, None], None, 8))
    order = np.arange(64).reshape(2, 2, 16).transpose(0, 2, 1).ravel()
    assert np.array_equal(packed.scales[0, 0], order + 1)
    assert np.array_equal(packed.codes[0, 1], order * 0x01010101)
    assert np.array_equal(packed.zeros, np.full((1, 1, 64), 2.0**23 + 128))


def test_bytes() -> None:
    assert pack_quantised(random_weight("int4", 64, 128, group=128), tables=False).nbytes == 64 * 64 + 2 * 64 * 4
