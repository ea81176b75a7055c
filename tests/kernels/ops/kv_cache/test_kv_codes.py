from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.ops.kv_cache.host_rows import encode_rows
from slipstream_kernels.ops.kv_cache.kv_codes import (
    LARGEST,
    LARGEST_SCALE,
    LEAST_SCALE,
    NAN,
    Fp8Rows,
    decode,
    encode,
    row_scales,
    rows_at,
    write_rows,
)

ALL = torch.arange(256, dtype=torch.uint8)
NUMBERS = ALL.view(torch.float8_e4m3fn).float()


def encoded(rows: torch.Tensor, fixed: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """By the definition and by the CPU's kernel, which must agree."""
    codes, scales = encode(rows, fixed)
    host_codes, host_scales = encode_rows(rows.float().numpy(), fixed)
    assert np.array_equal(codes.numpy(), host_codes)
    assert np.array_equal(scales.numpy(), host_scales)
    return codes, scales


@pytest.mark.parametrize("exponent", [-100, -3, 0, 7, 119])
def test_all_codes_are_their_own_rounding_and_exact_in_bfloat16(exponent: int) -> None:
    rows = (NUMBERS.double() * 2.0**exponent).float()[None]
    finite = rows.isfinite()[0]
    codes, scales = encoded(rows[:, finite])
    assert scales.item() == 2.0**exponent
    assert torch.equal(codes[0], ALL[finite])
    assert torch.equal(decode(codes, scales).float(), rows[:, finite])
    assert decode(ALL[~finite][None], scales).isnan().all()


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=16, max_size=16))
@settings(max_examples=200, deadline=None)
def test_finite_rows_give_finite_numbers_near_them(values: list[float]) -> None:
    row = torch.tensor([values], dtype=torch.float32)
    codes, scales = encoded(row)
    scale = scales.item()
    assert LEAST_SCALE <= scale <= LARGEST_SCALE and np.log2(scale).is_integer()
    assert not ((codes & 0x7F) == NAN).any()
    exact = (row.double() / scale).clamp(-LARGEST, LARGEST).float().to(torch.float8_e4m3fn)
    assert torch.equal(exact.view(torch.uint8), codes)
    restored = decode(codes, scales)
    assert restored.isfinite().all()
    if row.abs().max() <= LARGEST * LARGEST_SCALE:
        slack = row.double().abs() / 16 + scale * 2.0**-10
        assert ((restored.double() - row.double()).abs() <= slack).all()


def test_halves_round_to_even_and_what_is_too_large_saturates() -> None:
    between = (NUMBERS[:125] + NUMBERS[1:126]) / 2
    codes, _ = encoded(between[None], fixed=1.0)
    lower = torch.arange(125)
    assert torch.equal(codes[0].long(), lower + lower % 2)
    codes, _ = encoded(torch.tensor([[449.0, 1e30, -3e38, 464.0]]), fixed=1.0)
    assert codes.tolist() == [[0x7E, 0x7E, 0xFE, 0x7E]]
    codes, _ = encoded(torch.tensor([[3e38, -3e38]]), fixed=LEAST_SCALE)
    assert codes.tolist() == [[0x7E, 0xFE]]


def test_the_scale_is_the_least_power_of_two_that_holds_a_row() -> None:
    rows = torch.tensor([[448.0], [448.0 + 2**-15], [0.0], [1e-40], [3.4e38]])
    assert row_scales(rows).tolist() == [1.0, 2.0, LEAST_SCALE, LEAST_SCALE, LARGEST_SCALE]
    assert encoded(rows[2:4])[0].tolist() == [[0], [0]]


def test_what_is_no_number_stays_none() -> None:
    codes, scales = encoded(torch.tensor([[1.0, torch.nan], [torch.inf, -2.0]]))
    assert decode(codes, scales).isnan().tolist() == [[False, True], [True, False]]


def test_fixed_scales_round_once() -> None:
    generator = torch.Generator().manual_seed(0)
    fixed = float(np.float32(0.0371))
    rows = torch.randn(64, 128, generator=generator) * 9
    codes, scales = encoded(rows, fixed)
    assert scales.unique().tolist() == [fixed]
    product = (codes.view(torch.float8_e4m3fn).double() * fixed).float()
    assert torch.equal(decode(codes, scales), product.bfloat16())


def test_rows_are_written_and_read_by_slot() -> None:
    rows = Fp8Rows(torch.zeros(2, 5, 16, dtype=torch.uint8), torch.zeros(2, 5))
    new = torch.randn(2, 2, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    write_rows(rows, torch.tensor([3, 1]), new)
    assert torch.equal(rows_at(rows, torch.tensor([3, 1])), decode(*encode(new)))
    assert not rows.codes[:, [0, 2, 4]].any()
