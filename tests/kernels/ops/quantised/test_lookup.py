"""Weights that are looked up are `decode`'s, bit for bit."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch
from numba import types

from slipstream_kernels.ops.linear import BLOCK, linear, pack_weight
from slipstream_kernels.ops.quantised.instructions import LOOKS_UP
from slipstream_kernels.ops.quantised.lookup import decode_by_tables, row_by_tables
from slipstream_kernels.ops.quantised.lookup_packing import LOOKED_UP, TABLES_BYTES, can_look_up, pack_tables
from slipstream_kernels.ops.quantised.packing import elements_of
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode
from support.quantised_weights import usual_weight

pytestmark = pytest.mark.skipif(not LOOKS_UP, reason="the processor has no such instructions")

NUMBERS = list(LOOKED_UP)
INPUTS = 128


@pytest.fixture(scope="module", params=NUMBERS)
def kernels(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    """A number, and kernels that call its intrinsics."""
    row, decoding = row_by_tables(LOOKED_UP[request.param]), decode_by_tables(LOOKED_UP[request.param])

    def add(x: int, codes: int, words: int, record: int, sums: int) -> None:
        row(x, codes, words, record, sums)

    def write(codes: int, words: int, record: int, target: int) -> None:
        decoding(codes, words, record, target)

    five, four = types.void(*[types.int64] * 5), types.void(*[types.int64] * 4)
    return request.param, numba.njit(five)(add), numba.njit(four)(write)


def regular_weight(number: Any) -> QuantisedWeight:
    """One block and one group, without elements that would be flagged; scales of many sizes, the largest and 0 too."""
    weight = usual_weight(number, BLOCK, INPUTS, group=INPUTS, dtype=torch.float32)
    if number == "e4m3":
        sizes = torch.randint(0x18, 0x7F, weight.codes.shape, generator=torch.Generator().manual_seed(1))
        weight.codes.copy_(sizes | torch.randint(0, 2, sizes.shape) * 0x80)
        weight.codes[:, 0] = 0x7E
        weight.scales.mul_(torch.randint(0, 2, weight.scales.shape) * 2 - 1)
    weight.scales.mul_(2.0 ** torch.linspace(-80, 6, BLOCK)[:, None].round())
    weight.scales[9], weight.scales[10] = 0, 2.0**-117
    assert can_look_up(weight)
    return weight


def test_decoded_weights(kernels: tuple[Any, Any, Any]) -> None:
    number, _, write = kernels
    weight = regular_weight(number)
    words, records = pack_tables(weight)
    assert not records[..., TABLES_BYTES:].any()
    pairs = np.zeros((INPUTS // 2, BLOCK, 2), np.uint16)
    write(words.ctypes.data, words.shape[1], records.ctypes.data, pairs.ctypes.data)
    expected = decode(weight).view(torch.uint16).numpy().reshape(BLOCK, INPUTS // 2, 2)
    assert np.array_equal(pairs, expected.transpose(1, 0, 2))


def test_one_row_goes_on_with_its_sums(kernels: tuple[Any, Any, Any]) -> None:
    number, add, _ = kernels
    weight = regular_weight(number)
    words, records = pack_tables(weight)
    x, sums = np.random.default_rng(0).normal(size=(1, INPUTS)).astype(np.float32), np.zeros(BLOCK, np.float32)
    elements = elements_of(LOOKED_UP[number])
    for start, stop in ((0, 3), (3, words.shape[1])):
        at = x.ctypes.data + start * elements * 4
        add(at, words[0, start:].ctypes.data, stop - start, records.ctypes.data, sums.ctypes.data)
    assert np.array_equal(sums.view(np.uint32), linear(x, pack_weight(decode(weight)))[0].view(np.uint32))
