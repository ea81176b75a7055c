"""Weights decode to `decode`'s bits on any processor, whether it rounds to bfloat16 in one instruction or not."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numba import types

from slipstream_kernels.ops.linear import BLOCK, linear, pack_weight
from slipstream_kernels.ops.quantised import decoding
from slipstream_kernels.ops.quantised.instructions import ROUNDS
from slipstream_kernels.ops.quantised.packing import LEAST_SCALE, can_pack, elements_of, pack_quantised
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode
from support.quantised_weights import NUMBERS, random_weight

INPUTS = 96
ROUNDINGS = [False, pytest.param(True, marks=pytest.mark.skipif(not ROUNDS, reason="no such instruction"))]


def compiled(intrinsic: Any, addresses: int) -> Any:
    """A kernel that calls an intrinsic of 5 or 6 integers."""

    def of_five(a: int, b: int, c: int, d: int, e: int) -> None:
        intrinsic(a, b, c, d, e)

    def of_six(a: int, b: int, c: int, d: int, e: int, f: int) -> None:
        intrinsic(a, b, c, d, e, f)

    return numba.njit(types.void(*[types.int64] * addresses))(of_five if addresses == 5 else of_six)


def hostile_weight(number: Any) -> QuantisedWeight:
    """One block and one group, of scales from the least that can be packed to the largest."""
    weight = random_weight(number, BLOCK, INPUTS, group=INPUTS, hostile=True, zeros=number != "e4m3", seed=5)
    if number == "e4m3":
        weight.scales.clamp_(-127.5, 127.5)
    weight.scales[0], weight.scales[1] = LEAST_SCALE[weight.number], -LEAST_SCALE[weight.number]
    return weight


@pytest.mark.parametrize("at_once", ROUNDINGS)
@pytest.mark.parametrize("number", NUMBERS)
def test_a_group_is_decoded_as_linear_packs_it(number: Any, at_once: bool) -> None:
    weight = hostile_weight(number)
    assert can_pack(weight)
    packed, target = pack_quantised(weight, tables=False), np.zeros((INPUTS, BLOCK), np.uint16)
    kernel = compiled(decoding.decode_group(packed.kind, at_once), 5)
    words = INPUTS // elements_of(packed.kind)
    arrays = [each.ctypes.data for each in (packed.codes, packed.scales, packed.zeros)]
    kernel(arrays[0], words, arrays[1], arrays[2], target.ctypes.data)
    assert np.array_equal(target, pack_weight(decode(weight))[0])


@pytest.mark.parametrize("at_once", ROUNDINGS)
@pytest.mark.parametrize("number", NUMBERS)
def test_one_row_goes_on_with_its_sums(number: Any, at_once: bool) -> None:
    weight = hostile_weight(number)
    packed, sums = pack_quantised(weight, tables=False), np.zeros(BLOCK, np.float32)
    x = np.random.default_rng(0).normal(size=(1, INPUTS)).astype(np.float32)
    kernel = compiled(decoding.one_row(packed.kind, at_once), 6)
    words, scales, zeros = INPUTS // elements_of(packed.kind), packed.scales.ctypes.data, packed.zeros.ctypes.data
    for start, stop in ((0, 2), (2, words)):
        at = x.ctypes.data + start * elements_of(packed.kind) * 4
        codes = packed.codes.ctypes.data + start * BLOCK * 4
        kernel(at, codes, stop - start, scales, zeros, sums.ctypes.data)
    assert np.array_equal(sums.view(np.uint32), linear(x, pack_weight(decode(weight)))[0].view(np.uint32))
