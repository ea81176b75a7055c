from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode, doubled, halves, paired, stacked
from support.quantised_weights import NUMBERS, bits_of, random_weight


@pytest.mark.parametrize("number", NUMBERS)
def test_products_are_rounded_once(number: str) -> None:
    """Against exact rationals: float64 holds the product of any code and a float16 scale."""
    weight = random_weight(number, 40, 96, group=32, zeros=number != "e4m3")
    codes = halves(weight.codes) if number == "int4" else weight.codes
    values = codes.view(torch.float8_e4m3fn).double() if number == "e4m3" else codes.double()
    if weight.zeros is not None:
        values -= weight.zeros.repeat_interleave(32, 1)
    exact = (values * weight.scales.double().repeat_interleave(32, 1)).numpy()
    got = decode(weight).double().numpy()
    above, below = (bits_of(decode(weight)).astype(np.int64) + step for step in (1, -1))
    neighbours = [
        torch.from_numpy(bits.astype(np.uint16)).view(torch.bfloat16).double().numpy() for bits in (above, below)
    ]
    for other in neighbours:
        nearer = np.abs(got - exact) <= np.abs(np.nan_to_num(other, nan=np.inf) - exact)
        assert nearer.all()


def test_every_code_of_every_number() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    floats = QuantisedWeight("e4m3", codes[None], torch.ones(1, 1), None, 256)
    assert torch.equal(decode(floats).float()[0, :127], codes.view(torch.float8_e4m3fn).float()[:127])
    assert decode(floats)[0, 127].isnan() and decode(floats)[0, 0x78] == 256 and decode(floats)[0, 1] == 2.0**-9
    whole = QuantisedWeight("int8", codes[None], torch.full((1, 1), 0.5), None, 256)
    assert decode(whole)[0].tolist() == [float(torch.tensor((code - 128) * 0.5).bfloat16()) for code in range(256)]
    sizes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    small = QuantisedWeight("e2m1", paired(codes[None, :16]), torch.full((1, 1), 4.0), None, 16)
    assert decode(small)[0].tolist() == [4 * size for size in sizes] + [-4 * size for size in sizes]
    assert torch.equal(decode(doubled(small)), decode(small)) and small.shape == (1, 16)
    half = QuantisedWeight("int4", paired(codes[None, :16]), torch.ones(1, 1), torch.full((1, 1), 16).short(), 16)
    assert decode(half)[0].tolist() == [code - 16 for code in range(16)]


def test_ties_go_to_the_even_neighbour() -> None:
    scales = torch.tensor([[1 + 2.0**-8], [1 + 3 * 2.0**-8]])
    codes = paired(torch.full((2, 16), 9, dtype=torch.uint8))
    assert decode(QuantisedWeight("int4", codes, scales, None, 16))[:, 0].tolist() == [1.0, 1 + 2.0**-6]


@pytest.mark.parametrize("number", NUMBERS)
def test_parts_above_one_another_keep_their_scales(number: str) -> None:
    parts = [random_weight(number, 24, 128, group=128, seed=1), random_weight(number, 8, 128, group=32, seed=2)]
    if number != "e4m3":
        parts.append(random_weight(number, 16, 128, group=64, zeros=True, seed=3))
    whole = stacked(parts)
    assert whole is not None and whole.group == 32
    assert np.array_equal(bits_of(decode(whole)), bits_of(torch.cat([decode(part) for part in parts])))


def test_a_short_last_group() -> None:
    rows = random_weight("e4m3", 5, 176, group=176)
    blocks = random_weight("e4m3", 5, 176, group=128)
    assert blocks.scales.shape == (5, 2)
    whole = stacked([rows, blocks])
    assert whole is not None
    assert np.array_equal(bits_of(decode(whole)), bits_of(torch.cat([decode(rows), decode(blocks)])))


def test_parts_that_one_weight_cannot_hold() -> None:
    assert stacked([random_weight("e4m3", 8, 64, group=64), random_weight("int8", 8, 64, group=64)]) is None
    assert stacked([random_weight("int8", 8, 192, group=64), random_weight("int8", 8, 192, group=96)]) is None


def test_rows_by_index_and_slice() -> None:
    weight = random_weight("int4", 20, 64, group=32, zeros=True)
    index = torch.tensor([7, 3, 3])
    assert torch.equal(decode(weight.rows(index)), decode(weight)[index])
    assert torch.equal(decode(weight.rows(slice(4, 9))), decode(weight)[4:9])
    assert weight.shape == (20, 64) and weight.nbytes == 20 * 32 + 20 * 2 * 2 + 20 * 2 * 2
