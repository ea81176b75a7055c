"""`quantised_linear` gives the bits of `linear` with the decoded weight, whatever the rows and the scales."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.linear import ROW_GROUP, linear, pack_weight, padded
from slipstream_kernels.ops.quantised.instructions import LOOKS_UP
from slipstream_kernels.ops.quantised.packing import LOOKED_UP, can_pack, pack_quantised
from slipstream_kernels.ops.quantised_linear import quantised_linear
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode
from support.quantised_weights import NUMBERS, random_weight, usual_weight

ROWS = (1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 30, ROW_GROUP - 1, ROW_GROUP, ROW_GROUP + 1, 2 * ROW_GROUP + 7, 700, 2048)


def random_rows(rows: int, inputs: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, inputs)).astype(np.float32)


def same_bits(x: np.ndarray, weight: QuantisedWeight, bias: np.ndarray | None = None, *, tables: bool = False) -> bool:
    packed = pack_quantised(weight, tables)
    got, expected = quantised_linear(x, packed, bias), linear(x, pack_weight(decode(weight)), bias)
    return np.array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("group", [32, 128, 384])
def test_any_number_of_rows(number: str, group: int) -> None:
    weight = random_weight(number, 100, 384, group=group)
    for rows in ROWS:
        assert same_bits(random_rows(rows, 384), weight), rows


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 16), (16, 48), (130, 176), (200, 1024)])
def test_any_shape(number: str, outputs: int, inputs: int) -> None:
    for group in (inputs, 128):  # the last group may be short
        weight = random_weight(number, outputs, inputs, group=group)
        bias = random_rows(1, padded(outputs))[0]
        assert all(same_bits(random_rows(rows, inputs), weight, bias) for rows in (1, 3, 9))


@pytest.mark.parametrize("number", ["int8", "int4"])
def test_zero_points(number: str) -> None:
    weight = random_weight(number, 70, 256, group=64, zeros=True)
    assert all(same_bits(random_rows(rows, 256), weight) for rows in (1, 2, 8))


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("seed", range(4))
def test_scales_of_any_size(number: str, seed: int) -> None:
    weight = random_weight(number, 128, 512, group=32, seed=seed, hostile=True, zeros=number != "e4m3")
    if number == "e4m3":
        assert not can_pack(weight)
        scales = weight.scales.where(weight.scales.abs() < 2.0**7, weight.scales.sign() * 127.99)
        weight = QuantisedWeight("e4m3", weight.codes, scales, None, weight.group)
    assert can_pack(weight)
    assert all(same_bits(random_rows(rows, 512), weight) for rows in (1, 5))


@pytest.mark.parametrize("number", NUMBERS)
def test_every_code_at_every_place(number: Any) -> None:
    """One-hot rows read the decoded weight itself, zeros by their sign too."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(64, 4)
    codes = torch.stack([line.roll(shift) for shift, line in enumerate(codes)])[:, :256]
    if number == "e4m3":
        codes[(codes & 0x7F) == 0x7F] = 0
    scales = torch.linspace(0.001, 1.7, 64)[:, None]
    weight = QuantisedWeight(number, codes, scales, None, 512 if number == "int4" else 256)
    one_hot = np.eye(weight.shape[1], dtype=np.float32)
    expected = decode(weight).float().numpy().T
    assert np.array_equal(quantised_linear(one_hot, pack_quantised(weight, tables=False)), expected)
    alone = [quantised_linear(row[None], pack_quantised(weight, tables=False))[0] for row in one_hot]
    assert np.array_equal(np.stack(alone), expected)


@pytest.mark.skipif(not LOOKS_UP, reason="the processor has no such instructions")
@pytest.mark.parametrize("number", ["e4m3", "int4"])
@pytest.mark.parametrize(("outputs", "inputs", "group"), [(64, 32, 32), (100, 384, 128), (130, 200, 200), (8, 424, 96)])
def test_weights_that_are_looked_up(number: str, outputs: int, inputs: int, group: int) -> None:
    bias = random_rows(1, padded(outputs))[0]
    for deviation in (100, 10):
        weight = usual_weight(number, outputs, inputs, group=group, deviation=deviation)
        weight.scales[1], weight.codes[2] = 0, 0
        if number == "e4m3":
            weight.scales[::3] *= -1
        assert pack_quantised(weight, tables=True).kind in LOOKED_UP.values()
        for rows in (*range(1, 21), ROW_GROUP + 3):
            assert same_bits(random_rows(rows, inputs), weight, bias, tables=True), rows


@pytest.mark.skipif(not LOOKS_UP, reason="the processor has no such instructions")
@pytest.mark.parametrize("number", ["e4m3", "int4"])
@pytest.mark.parametrize("seed", range(4))
def test_looked_up_weights_with_scales_of_any_size(number: str, seed: int) -> None:
    weight = random_weight(number, 128, 512, group=32, seed=seed, hostile=True)
    scales = weight.scales.clamp(-127.99, 127.99) if number == "e4m3" else weight.scales.abs()
    weight = QuantisedWeight(weight.number, weight.codes, scales, None, weight.group)
    if number == "e4m3":
        weight.codes[:, ::7] &= 0xF8  # four in a row without zeros and denormal numbers
        weight.codes[:, :256] |= 0x20
        weight.codes[(weight.codes & 0x7F) == 0x7F] = 0x7E
    assert pack_quantised(weight, tables=True).kind in LOOKED_UP.values()
    assert all(same_bits(random_rows(rows, 512), weight, tables=True) for rows in (1, 5))


@pytest.mark.skipif(not LOOKS_UP, reason="the processor has no such instructions")
@pytest.mark.parametrize("number", ["e4m3", "int4"])
def test_every_code_with_every_mantissa_of_a_scale(number: Any) -> None:
    """Rows hold one code each, at all places but one, which has the largest number."""
    codes = torch.arange(256, dtype=torch.uint8).repeat_interleave(4)[:, None].repeat(1, 32)
    codes[(codes & 0x7F) == 0x7F] = 0x7E
    if number == "e4m3":
        codes[:, 0] = 0x7E
    else:
        codes = codes[:, :16]
    scales = (torch.arange(1024) % 97 * 0.013 + 1)[:, None]
    weight = QuantisedWeight(number, codes, scales, None, 32)
    one_hot = np.eye(32, dtype=np.float32)
    expected = decode(weight).float().numpy().T
    for row in (one_hot, *one_hot[:, None][::5]):
        got = quantised_linear(row, pack_quantised(weight, tables=True))
        assert np.array_equal(got, expected if len(row) > 1 else expected[row.argmax()][None])


def test_sizes_that_differ_and_no_rows() -> None:
    packed = pack_quantised(random_weight("int8", 64, 32, group=32))
    with pytest.raises(ValueError, match="x has 16 columns, the weight has 32"):
        quantised_linear(np.zeros((1, 16), np.float32), packed)
    assert quantised_linear(np.zeros((0, 32), np.float32), packed).shape == (0, 64)
