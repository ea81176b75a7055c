from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.linear import padded
from slipstream_kernels.ops.lora.add_lora import add_lora, add_lora_reference, pack_lora
from slipstream_kernels.ops.lora.lora_weight import LoraWeight

Parts = list[tuple[int, LoraWeight | None]]


def weight(outputs: int, inputs: int, rank: int, seed: int = 0) -> LoraWeight:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rank, inputs, generator=generator).bfloat16()
    b = torch.randn(outputs, rank, generator=generator).bfloat16()
    return LoraWeight(a, b, 0.3)


def rows(count: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32)


@pytest.mark.parametrize("rank", [1, 8, 16, 33, 128])
def test_against_float64(rank: int) -> None:
    inputs = 144
    parts: Parts = [(80, weight(80, inputs, rank)), (48, None), (16, weight(16, inputs, max(1, rank // 2), seed=1))]
    packed = pack_lora(parts)
    assert packed is not None
    x, out = rows(5, inputs), rows(5, padded(144), seed=1)
    expected = torch.from_numpy(out[:, :144].astype(np.float64))
    add_lora_reference(torch.from_numpy(x).double(), parts, expected)
    add_lora(x, packed, out)
    np.testing.assert_allclose(out[:, :144], expected.numpy(), rtol=1e-5, atol=2e-4)


def test_a_part_without_an_adapter_keeps_its_bits() -> None:
    packed = pack_lora([(64, None), (64, weight(64, 32, 8))])
    assert packed is not None
    out = rows(7, 128)
    before = out.copy()
    add_lora(rows(7, 32, seed=2), packed, out)
    assert np.array_equal(out[:, :64], before[:, :64])
    assert not np.array_equal(out[:, 64:], before[:, 64:])
    assert pack_lora([(64, None)]) is None


@pytest.mark.parametrize("count", [2, 3, 5, 6, 7, 13, 100])
def test_a_rows_bits_do_not_depend_on_its_company(count: int) -> None:
    packed = pack_lora([(192, weight(192, 96, 16))])
    assert packed is not None
    x, base = rows(count, 96), rows(count, 192, seed=1)
    together = base.copy()
    add_lora(x, packed, together)
    for row in range(count):
        alone = base[row : row + 1].copy()
        add_lora(x[row : row + 1], packed, alone)
        assert np.array_equal(alone[0], together[row])


def test_a_larger_room_for_the_rank_changes_no_bit() -> None:
    lora = weight(64, 96, 8)
    x, narrow = rows(4, 96), rows(4, 64, seed=1)
    wide = narrow.copy()
    zeros = LoraWeight(torch.cat([lora.a, torch.zeros(72, 96).bfloat16()]),
                       torch.cat([lora.b, torch.zeros(64, 72).bfloat16()], dim=1), lora.scale)  # fmt: skip
    for each, out in ((lora, narrow), (zeros, wide)):
        packed = pack_lora([(64, each)])
        assert packed is not None
        add_lora(x, packed, out)
    assert np.array_equal(narrow, wide)


def test_shapes_that_do_not_fit() -> None:
    packed = pack_lora([(64, weight(64, 32, 8))])
    assert packed is not None
    with pytest.raises(ValueError, match="for an adapter of"):
        add_lora(rows(2, 31), packed, rows(2, 64))
