"""Linear layer that decodes its weights in registers while the products of those before are under way: for few rows."""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents

from slipstream_kernels.ops.gpu.launch import launch
from slipstream_kernels.ops.gpu.packed.hopper_epilogue import gated_sums
from slipstream_kernels.ops.gpu.packed.hopper_sums import streamed_sums, x_layout
from slipstream_kernels.ops.gpu.packed.packed_tile import PART, PackedTile
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight, chunk_of
from slipstream_kernels.ops.quantised_weight import implied_zero


@gluon.jit
def _store(
    sums: gl.tensor,
    out: gl.tensor,
    bias: gl.tensor,
    residual: gl.tensor,
    first: gl.tensor,
    end: gl.tensor,
    first_token: gl.tensor,
    rows: gl.tensor,
    out_stride: gl.tensor,
    residual_stride: gl.tensor,
    TOKENS: gl.constexpr,
    halves: gl.constexpr,
    products: gl.constexpr,
    scratch: gl.constexpr,
) -> None:
    """As `linear_epilogue.store_outputs`, of sums [lines, TOKENS] in the order of the program's units."""
    lines: gl.constexpr = sums.shape[0]
    if products == 2:
        sums = gated_sums(sums, TOKENS, halves, scratch)
        place = gl.arange(0, lines // 2)
        line = place if halves == 2 else place // 16 * 8 + place % 8 + place // 8 % 2 * lines
    else:
        place = gl.arange(0, lines)
        line = (place // 8 % 2 * (lines // 16) + place // 16) * 8 + place % 8
    mine = line < end - first
    row = gl.arange(0, TOKENS)
    inside = mine[:, None] & (row < rows - first_token)[None, :]
    if bias is not None:
        sums += gl.load(bias + first + line, mask=mine, other=0.0).to(gl.float32)[:, None]
    if residual is not None:
        corner = residual + first_token.to(gl.int64) * residual_stride + first
        offsets = row[None, :] * residual_stride + line[:, None]
        sums += gl.load(corner + offsets, mask=inside, other=0.0).to(gl.float32)
    corner = out + first_token.to(gl.int64) * out_stride + first
    offsets = row[None, :] * out_stride + line[:, None]
    gl.store(corner + offsets, sums.to(out.dtype.element_ty), mask=inside)


@gluon.jit(do_not_specialize=["rows", "share"])
def _hopper_stream(
    x: gl.tensor,
    codes: gl.tensor,
    scales: gl.tensor,
    zeros: gl.tensor,
    out: gl.tensor,
    bias: gl.tensor,
    residual: gl.tensor,
    rows: int,
    share: int,
    outputs: int,
    inputs: int,
    units: int,
    chunks: int,
    groups: int,
    x_stride: int,
    out_stride: int,
    residual_stride: int,
    TOKENS: gl.constexpr,
    STAGES: gl.constexpr,
    PARTS: gl.constexpr,
    PART_COLUMNS: gl.constexpr,
    WARPS: gl.constexpr,
    HALVES: gl.constexpr,
    PRODUCTS: gl.constexpr,
    CHUNK_COLUMNS: gl.constexpr,
    NUMBER: gl.constexpr,
    PAIRED: gl.constexpr,
    GROUP: gl.constexpr,
    ZERO: gl.constexpr,
    ZEROS: gl.constexpr,
) -> None:
    """`share` outputs of one block of tokens."""
    scratch: gl.constexpr = gl.BlockedLayout([16 * WARPS, 1], [1, 32], [1, WARPS], [1, 0])
    gdc_launch_dependents()
    token_tiles = gl.cdiv(rows, TOKENS)
    first = gl.program_id(0) // token_tiles * share
    first_token = gl.program_id(0) % token_tiles * TOKENS
    end = gl.minimum(first + share, outputs)
    first_unit = first * PRODUCTS // 8
    last_unit = gl.minimum((end * PRODUCTS + 7) // 8, units)
    token = gl.arange(0, TOKENS, gl.SliceLayout(1, x_layout(PARTS * PART_COLUMNS, WARPS)))
    present = (token < rows - first_token)[:, None]
    corner = x + first_token.to(gl.int64) * x_stride
    result = streamed_sums(
        corner, token[:, None] * x_stride, present, codes, scales, zeros, first_unit, last_unit, inputs, units, chunks,
        groups, TOKENS, STAGES, PARTS, PART_COLUMNS, WARPS, HALVES, PRODUCTS, CHUNK_COLUMNS, NUMBER, PAIRED, GROUP,
        ZERO, ZEROS,
    )  # fmt: skip
    _store(
        result, out, bias, residual, first, end, first_token, rows, out_stride, residual_stride, TOKENS, HALVES,
        PRODUCTS, scratch,
    )  # fmt: skip


def hopper_stream(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tile: PackedTile,
    gated: bool,
) -> None:
    """`linear`, or `gated_linear` where `gated`, of a packed weight, cut by `tile`."""
    form, rows = weight.form, len(x)
    launch(
        _hopper_stream,
        (triton.cdiv(out.shape[1], tile.outputs) * triton.cdiv(rows, tile.tokens),),
        x,
        weight.codes,
        weight.scales,
        weight.zeros,
        out,
        bias,
        residual,
        rows,
        tile.outputs,
        out.shape[1],
        form.inputs,
        form.units,
        form.chunks,
        form.groups,
        x.stride(0),
        out.stride(0),
        0 if residual is None else residual.stride(0),
        warps=tile.warps,
        TOKENS=tile.tokens,
        STAGES=tile.stages,
        PARTS=tile.parts,
        PART_COLUMNS=PART,
        WARPS=tile.warps,
        HALVES=tile.halves(gated),
        PRODUCTS=2 if gated else 1,
        CHUNK_COLUMNS=chunk_of(form.number),
        NUMBER=form.number,
        PAIRED=weight.paired,
        GROUP=form.group,
        ZERO=float(implied_zero(form.number)),
        ZEROS=form.zeros,
    )
