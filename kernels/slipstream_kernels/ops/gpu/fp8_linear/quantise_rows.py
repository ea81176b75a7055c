"""Activations in e4m3: each row, a token's, by a scale of its own."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.fp8_rows import codes_of, magnitude_bits, own_exponent, power
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.kv_cache.kv_codes import encode

_WARP_ELEMENTS = 512
"""Of a row, for a warp: more would not be held in registers."""
_WIDE, _TILE = 8192, 4096
"""Elements beyond which a row's program would have a multiprocessor for itself, and of a tile where there are many such
rows: several programs then share one, and what they read twice is in its cache.
"""
_FEW_ROWS = 132
"""One a multiprocessor."""


@triton.jit
def codes_and_scale(values: tl.tensor) -> Any:
    """uint8 codes of float32 numbers that share a scale, and that scale, the least power of two with none above 448."""
    exponent = own_exponent(tl.max(magnitude_bits(values), 0))
    return codes_of(values, power(254 - exponent)), power(exponent)


@triton.jit
def _quantise_rows(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    inputs: int,
    x_stride: int,
    TILE: tl.constexpr,
    WHOLE: tl.constexpr,
) -> None:
    """One row a program: WHOLE in one tile, or in tiles that are read twice."""
    release_next()
    wait_for_previous()
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    x += row * x_stride
    codes += row * inputs
    if WHOLE:
        own = columns < inputs
        made, scale = codes_and_scale(tl.load(x + columns, mask=own, other=0.0).to(tl.float32))
        tl.store(scales + row, scale)
        tl.store(codes + columns, made, mask=own)
    else:
        largest = tl.zeros((TILE,), tl.int32)
        for start in range(0, inputs, TILE):
            values = tl.load(x + start + columns, mask=start + columns < inputs, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, magnitude_bits(values))
        exponent = own_exponent(tl.max(largest, 0))
        tl.store(scales + row, power(exponent))
        for start in range(0, inputs, TILE):
            own = start + columns < inputs
            values = tl.load(x + start + columns, mask=own, other=0.0).to(tl.float32)
            tl.store(codes + start + columns, codes_of(values, power(254 - exponent)), mask=own)


def quantise_rows(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Codes uint8 [rows, K], contiguous, and float32 scales [rows] of bfloat16 x [rows, K]: `kv_codes.encode` of rows.

    A scale is the least power of two with which no element exceeds 448. A row depends on nothing but itself.
    """
    rows, inputs = x.shape
    assert x.stride(1) == 1
    assert codes.is_contiguous()
    width = triton.next_power_of_2(inputs)
    tile = _TILE if width > _WIDE and rows > _FEW_ROWS else width
    warps = min(max(tile // _WARP_ELEMENTS, 4), 32)
    strides = inputs, x.stride(0)
    launch(_quantise_rows, (rows,), x, codes, scales, *strides, warps=warps, TILE=tile, WHOLE=tile == width)


def quantise_rows_reference(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """The same in torch."""
    made, of_rows = encode(x)
    codes.copy_(made)
    scales.copy_(of_rows)
