"""Linear layer that decodes its weights in registers, in front of the products of `linear_stream`.

The operands of each product are those of the decoded weight, and so are the order of sums and the bits. On GPUs that
have asynchronous products `hopper_stream` is in its place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import dot, launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear_epilogue import gated_sums, store_outputs
from slipstream_kernels.ops.gpu.packed.fragments import ROWS, decoded_tile, groups_at, words_at
from slipstream_kernels.ops.gpu.packed.packed_tile import PART, PackedTile
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight, chunk_of
from slipstream_kernels.ops.quantised_weight import implied_zero


@triton.jit(do_not_specialize=["rows"])
def _packed_stream(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    out: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    rows: int,
    outputs: int,
    inputs: int,
    units: int,
    chunks: int,
    groups: int,
    x_stride: int,
    out_stride: int,
    residual_stride: int,
    TOKENS: tl.constexpr,
    CHUNKS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRODUCTS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    NUMBER: tl.constexpr,
    PAIRED: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    ZEROS: tl.constexpr,
) -> None:
    """64 rows of the weight, by CHUNKS chunks of COLUMNS, and one block of tokens."""
    release_next()
    token_tiles = tl.cdiv(rows, TOKENS)
    unit = tl.program_id(0) // token_tiles * 8
    first_token = tl.program_id(0) % token_tiles * TOKENS
    tokens = first_token + tl.arange(0, TOKENS)
    wait_for_previous()
    sums = tl.zeros((64, TOKENS), tl.float32)
    for chunk in range(0, chunks, CHUNKS):
        words = words_at(codes, unit, units, chunk, chunks, CHUNKS)
        factors = groups_at(scales, unit, units, chunk, groups, CHUNKS, COLUMNS, GROUP)
        points = groups_at(zeros, unit, units, chunk, groups, CHUNKS, COLUMNS, GROUP) if ZEROS else ZERO
        columns = chunk * COLUMNS + tl.arange(0, CHUNKS * COLUMNS)[None, :]
        inside = (tokens < rows)[:, None] & (columns < inputs)
        values = tl.load(x + tokens.to(tl.int64)[:, None] * x_stride + columns, mask=inside, other=0.0)
        sums = dot(decoded_tile(words, factors, points, NUMBER, PAIRED, CHUNKS), tl.trans(values), sums)
    if PRODUCTS == 2:
        sums = gated_sums(sums)
    first = unit * 8 // PRODUCTS
    store_outputs(
        sums, out, bias, residual, first, outputs, first_token, rows, out_stride, residual_stride, BIAS, RESIDUAL
    )


def packed_stream(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tile: PackedTile,
    gated: bool,
) -> None:
    """`linear`, or `gated_linear` where `gated`, of a packed weight; of `tile` the tokens count."""
    form, rows = weight.form, len(x)
    columns = chunk_of(form.number)
    launch(
        _packed_stream,
        (triton.cdiv(form.outputs, ROWS) * triton.cdiv(rows, tile.tokens),),
        x,
        weight.codes,
        weight.scales,
        weight.zeros,
        out,
        bias,
        residual,
        rows,
        out.shape[1],
        form.inputs,
        form.units,
        form.chunks,
        form.groups,
        x.stride(0),
        out.stride(0),
        0 if residual is None else residual.stride(0),
        TOKENS=tile.tokens,
        CHUNKS=PART // columns,
        COLUMNS=columns,
        PRODUCTS=2 if gated else 1,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        NUMBER=form.number,
        PAIRED=weight.paired,
        GROUP=form.group,
        ZERO=float(implied_zero(form.number)),
        ZEROS=form.zeros,
    )
