"""Weights' tables: which weights have them, and that elements without their form stay as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.linear import BLOCK, pack_weight
from slipstream_kernels.ops.quantised.lookup_packing import (
    TABLES_BYTES,
    byte_place,
    can_look_up,
    linear_place,
    pack_tables,
    record_bytes,
)
from slipstream_kernels.ops.quantised.packing import LOOKED_UP, pack_quantised
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from support.quantised_weights import random_weight, usual_weight


def flags_of(records: np.ndarray, inputs: int) -> np.ndarray:
    """Of records of one group: bool [blocks, K / 4]."""
    return records[:, 0, TABLES_BYTES : TABLES_BYTES + inputs // 4].astype(bool)


def test_weights_that_have_tables() -> None:
    assert can_look_up(usual_weight("e4m3", 64, 128, group=128))
    assert can_look_up(usual_weight("int4", 64, 128, group=32))
    assert not can_look_up(usual_weight("int4", 64, 128, group=16))
    assert not can_look_up(usual_weight("int8", 64, 128, group=128))


def test_int4_has_tables_without_signs_of_scales_and_zero_points() -> None:
    weight = usual_weight("int4", 64, 128, group=64)
    eights = torch.full(weight.scales.shape, 8, dtype=torch.int16)
    assert can_look_up(QuantisedWeight("int4", weight.codes, weight.scales, eights, 64))
    eights[3, 1] = 7
    assert not can_look_up(QuantisedWeight("int4", weight.codes, weight.scales, eights, 64))
    weight.scales[5, 0] = -0.0
    assert not can_look_up(weight)


def test_places() -> None:
    assert sorted(byte_place(row, i) for row in range(BLOCK) for i in range(4)) == list(range(4 * BLOCK))
    rows = torch.arange(BLOCK, dtype=torch.int16)[:, None].view(torch.bfloat16)
    packed = pack_weight(rows)[0, 0]
    assert [int(packed[linear_place(row)]) for row in range(BLOCK)] == list(range(BLOCK))


def test_flagged_are_the_elements_without_the_form() -> None:
    weight = usual_weight("e4m3", BLOCK, 256, group=256)
    codes = weight.codes.clone()
    normal = torch.randint(0x38, 0x7F, codes.shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    codes.copy_(normal)
    codes[:, 0] = 0x7E  # the largest number, in every row
    assert not flags_of(pack_tables(weight_of(weight, codes))[1], 256).any()
    codes[7, 8] = 0  # a zero
    codes[20, 99] = 0x83  # a denormal number
    words, records = pack_tables(weight_of(weight, codes))
    assert np.flatnonzero(flags_of(records, 256)).tolist() == [8 // 4, 99 // 4]
    plain = pack_quantised(weight_of(weight, codes), tables=False).codes
    assert np.array_equal(words[0, 24], plain[0, 24])
    assert not np.array_equal(words[0, 25], plain[0, 25])


def weight_of(like: QuantisedWeight, codes: torch.Tensor) -> QuantisedWeight:
    return QuantisedWeight("e4m3", codes, like.scales, None, like.group)


def test_rows_of_zeros_are_looked_up() -> None:
    weight = usual_weight("e4m3", 40, 128, group=128)  # and 24 that are padding
    codes = torch.full_like(weight.codes, 0x5A)
    codes[3], codes[4] = 0, 0x80
    weight.scales[5] = 0
    assert not flags_of(pack_tables(weight_of(weight, codes))[1], 128).any()


@pytest.mark.parametrize("deviation", [100, 20])
def test_few_elements_of_usual_weights_are_flagged(deviation: float) -> None:
    weight = usual_weight("e4m3", 128, 1024, group=1024, deviation=deviation)
    assert flags_of(pack_tables(weight)[1], 1024).mean() < 0.2


def test_bytes_of_records() -> None:
    assert record_bytes(LOOKED_UP["int4"], 128) == TABLES_BYTES == 1024
    assert record_bytes(LOOKED_UP["e4m3"], 128) == 1024 + 64
    assert record_bytes(LOOKED_UP["e4m3"], 2048) == 1024 + 512
    packed = pack_quantised(usual_weight("int4", 64, 256, group=128), tables=True)
    assert packed.nbytes == 64 * 128 + 2 * 1024
    assert packed.kind == LOOKED_UP["int4"]
    assert pack_quantised(random_weight("int8", 64, 256, group=128), tables=True).zeros.size
