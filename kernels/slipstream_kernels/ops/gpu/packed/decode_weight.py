"""A packed weight decoded to bfloat16 in device memory: for rows so many that the weights' way no longer counts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.packed.decode_codes import decode_bytes, decode_plane
from slipstream_kernels.ops.gpu.packed.packed_weight import PLANE, STEP, PackedWeight
from slipstream_kernels.ops.quantised_weight import implied_zero

_STEP, _PLANE = tl.constexpr(STEP), tl.constexpr(PLANE)
_ROWS = 16


@triton.jit
def _decode_weight(
    codes: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    out: tl.tensor,
    outputs: int,
    inputs: int,
    width: int,
    ROWS: tl.constexpr,
    NUMBER: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    ZEROS: tl.constexpr,
) -> None:
    """_STEP columns of ROWS rows."""
    release_next()
    # The room is read by the kernel in front of this one, and written below.
    wait_for_previous()
    lines = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    start = tl.program_id(1) * _STEP
    here = lines < outputs
    out_at = out + lines.to(tl.int64) * inputs + start
    columns = tl.arange(0, _PLANE)[None, :]
    codes_at = codes + lines.to(tl.int64) * width + columns
    if NUMBER == "int4":
        words = tl.load(codes_at + tl.program_id(1) * _PLANE, mask=here, other=0)
    for plane in tl.static_range(8):
        column = start + plane * _PLANE
        inside = here & (column + columns < inputs)
        group = column // GROUP if GROUP > 0 else 0
        at = group * outputs + lines
        there = here & (column < inputs)
        factors = tl.load(scales + at, mask=there, other=0.0)
        points = tl.load(zeros + at, mask=there, other=0.0) if ZEROS else ZERO
        if NUMBER == "int4":
            if plane == 4:
                words = words >> 16
            values = decode_plane(words, factors, points, plane % 4)
        else:
            values = decode_bytes(tl.load(codes_at + column, mask=inside, other=0), factors, points, NUMBER == "e4m3")
        tl.store(out_at + plane * _PLANE + columns, values, mask=inside)


def decode_weight(weight: PackedWeight, out: torch.Tensor) -> None:
    """Write the bfloat16 weight to `out`, contiguous [N, K]: the bits of `ops.quantised_weight.decode`."""
    outputs, inputs = weight.shape
    assert out.shape == weight.shape
    assert out.is_contiguous()
    launch(
        _decode_weight,
        (triton.cdiv(outputs, _ROWS), triton.cdiv(inputs, STEP)),
        weight.codes,
        weight.scales,
        weight.zeros,
        out,
        outputs,
        inputs,
        weight.codes.shape[1],
        ROWS=_ROWS,
        NUMBER=weight.number,
        GROUP=weight.group,
        ZERO=float(implied_zero(weight.number)),
        ZEROS=weight.zeros is not None,
    )
