"""Linear layer that decodes its weights in registers, in front of the products of `linear_stream`: for few rows.

What is read from memory is the codes, with a scale, and maybe a zero point, for each group of columns. The operands of
each product are those of the decoded weight, and so are the order of sums and the bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import dot, launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear_epilogue import gated_sums, store_outputs
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.packed.decode_codes import decode_bytes, decode_plane
from slipstream_kernels.ops.gpu.packed.packed_weight import PLANE, STEP, PackedWeight
from slipstream_kernels.ops.gpu.prefetch import prefetch_rows
from slipstream_kernels.ops.quantised_weight import implied_zero

_STEP, _PLANE = tl.constexpr(STEP), tl.constexpr(PLANE)


@triton.jit
def _of_group(
    scales_at: tl.tensor,
    zeros_at: tl.tensor,
    group: tl.tensor,
    outputs: tl.tensor,
    own: tl.tensor,
    ZERO: tl.constexpr,
    ZEROS: tl.constexpr,
) -> Any:
    """(scales, zeros) of a group of columns; rows that are not `own` have scales of 0."""
    scales = tl.load(scales_at + group * outputs, mask=own, other=0.0)
    zeros = tl.zeros_like(scales) + ZERO
    if ZEROS:
        zeros = tl.load(zeros_at + group * outputs, mask=own, other=0.0)
    return scales, zeros


@triton.jit
def _sums_of_bytes(
    x_at: tl.tensor,
    rows_at: tl.tensor,
    scales_at: tl.tensor,
    zeros_at: tl.tensor,
    present: tl.tensor,
    own: tl.tensor,
    inputs: tl.tensor,
    lines: tl.tensor,
    WEIGHT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
    E4M3: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    ZEROS: tl.constexpr,
) -> Any:
    """As `chained_sums`, of codes of a byte; DEPTH divides GROUP."""
    depths = tl.arange(0, DEPTH)[None, :]
    x_at += depths
    codes_at = rows_at[:, None] + depths
    sums = tl.zeros((WEIGHT_ROWS, TOKENS), tl.float32)
    scales, zeros = _of_group(scales_at, zeros_at, 0, lines, own, ZERO, ZEROS)
    for start in range(0, inputs, DEPTH):
        if GROUP > 0:
            scales, zeros = _of_group(scales_at, zeros_at, start // GROUP, lines, own, ZERO, ZEROS)
        if EVEN:
            codes = tl.load(codes_at, mask=own, other=0)
            values = tl.load(x_at, mask=present, other=0.0)
        else:
            inside = start + depths < inputs
            codes = tl.load(codes_at, mask=own & inside, other=0)
            values = tl.load(x_at, mask=present & inside, other=0.0)
        sums = dot(decode_bytes(codes, scales, zeros, E4M3), tl.trans(values), sums)
        codes_at += DEPTH
        x_at += DEPTH
    return sums


@triton.jit
def _sums_of_words(
    x_at: tl.tensor,
    rows_at: tl.tensor,
    scales_at: tl.tensor,
    zeros_at: tl.tensor,
    present: tl.tensor,
    own: tl.tensor,
    inputs: tl.tensor,
    lines: tl.tensor,
    WEIGHT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    EVEN: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    ZEROS: tl.constexpr,
) -> Any:
    """As `chained_sums`, of codes of half a byte: a thread's words hold the columns of eight products in a row."""
    columns = tl.arange(0, _PLANE)[None, :]
    x_at += columns
    words_at = rows_at[:, None] + columns
    sums = tl.zeros((WEIGHT_ROWS, TOKENS), tl.float32)
    scales, zeros = _of_group(scales_at, zeros_at, 0, lines, own, ZERO, ZEROS)
    for start in range(0, inputs, _STEP):
        words = tl.load(words_at, mask=own, other=0)
        for plane in tl.static_range(8):
            if GROUP > 0 and plane * _PLANE % GROUP == 0:
                group = start // GROUP + plane * _PLANE // GROUP
                there = own if EVEN else own & (start + plane * _PLANE < inputs)
                scales, zeros = _of_group(scales_at, zeros_at, group, lines, there, ZERO, ZEROS)
            if EVEN:
                values = tl.load(x_at + plane * _PLANE, mask=present, other=0.0)
            else:
                inside = start + plane * _PLANE + columns < inputs
                values = tl.load(x_at + plane * _PLANE, mask=present & inside, other=0.0)
            if plane == 4:
                words = words >> 16
            sums = dot(decode_plane(words, scales, zeros, plane % 4), tl.trans(values), sums)
        words_at += _PLANE
        x_at += _STEP
    return sums


@triton.jit(do_not_specialize=["rows", "share", "ahead"])
def _packed_stream(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    out: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    rows: int,
    share: int,
    ahead: int,
    outputs: int,
    inputs: int,
    width: int,
    x_stride: int,
    out_stride: int,
    residual_stride: int,
    WEIGHT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRODUCTS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    EVEN: tl.constexpr,
    PREFETCH: tl.constexpr,
    NUMBER: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    ZEROS: tl.constexpr,
) -> None:
    """As `_linear_stream`; a row has `width` elements of codes."""
    release_next()
    token_tiles = tl.cdiv(rows, TOKENS)
    first = tl.program_id(0) // token_tiles * share
    first_token = tl.program_id(0) % token_tiles * TOKENS
    end = tl.minimum(first + share, outputs)
    tokens = first_token + tl.arange(0, TOKENS)
    lines = first * PRODUCTS + tl.arange(0, WEIGHT_ROWS)
    own = lines < end * PRODUCTS
    rows_at = codes + lines.to(tl.int64) * width
    if PREFETCH:
        prefetch_rows(rows_at, own & (first_token == 0), ahead, width, 32 if NUMBER == "int4" else 128)
    wait_for_previous()
    x_at = x + tokens.to(tl.int64)[:, None] * x_stride
    present = (tokens < rows)[:, None]
    scales_at, zeros_at = scales + lines[:, None], zeros
    if ZEROS:
        zeros_at += lines[:, None]
    if NUMBER == "int4":
        sums = _sums_of_words(
            x_at, rows_at, scales_at, zeros_at, present, own[:, None], inputs, outputs * PRODUCTS,
            WEIGHT_ROWS, TOKENS, EVEN, GROUP, ZERO, ZEROS,
        )  # fmt: skip
    else:
        sums = _sums_of_bytes(
            x_at, rows_at, scales_at, zeros_at, present, own[:, None], inputs, outputs * PRODUCTS,
            WEIGHT_ROWS, TOKENS, DEPTH, EVEN, NUMBER == "e4m3", GROUP, ZERO, ZEROS,
        )  # fmt: skip
    if PRODUCTS == 2:
        sums = gated_sums(sums)
    store_outputs(sums, out, bias, residual, first, end, first_token, rows, out_stride, residual_stride, BIAS, RESIDUAL)


def packed_stream(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tile: Tile,
    gated: bool,
) -> None:
    """`linear`, or `gated_linear` where `gated`, of a packed weight.

    `tile` has no descriptors; its depth is STEP for int4, else it divides the weight's groups.
    """
    (rows, inputs), outputs = x.shape, out.shape[1]
    assert not tile.descriptors
    assert tile.depth == STEP if weight.number == "int4" else weight.group % tile.depth == 0
    launch(
        _packed_stream,
        (triton.cdiv(outputs, tile.outputs) * triton.cdiv(rows, tile.tokens),),
        x,
        weight.codes,
        weight.scales,
        weight.zeros,
        out,
        bias,
        residual,
        rows,
        tile.outputs,
        tile.prefetch // weight.codes.element_size(),
        outputs,
        inputs,
        weight.codes.shape[1],
        x.stride(0),
        out.stride(0),
        0 if residual is None else residual.stride(0),
        warps=tile.warps,
        stages=tile.stages,
        WEIGHT_ROWS=tile.weight_rows(gated),
        TOKENS=tile.tokens,
        DEPTH=tile.depth,
        PRODUCTS=2 if gated else 1,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        EVEN=inputs % tile.depth == 0,
        PREFETCH=tile.prefetch > 0,
        NUMBER=weight.number,
        GROUP=weight.group,
        ZERO=float(implied_zero(weight.number)),
        ZEROS=weight.zeros is not None,
    )
