"""Linear layer whose threads copy the operands: any number of outputs a program, for few rows.

With few rows the time goes into reading the weights, so that every multiprocessor has to read its equal share. The
outputs of a program are therefore any number, chosen so that the programs come out even; what is missing to the rows
of a matrix instruction is zero and read from nowhere.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import dot, launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear_epilogue import gated_sums, store_outputs
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.prefetch import prefetch_rows


@triton.jit
def chained_sums(
    x_at: tl.tensor,
    rows_at: tl.tensor,
    present: tl.tensor,
    own: tl.tensor,
    inputs: tl.tensor,
    WEIGHT_ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DEPTH: tl.constexpr,
    EVEN: tl.constexpr,
) -> Any:
    """weight x^T for WEIGHT_ROWS x TOKENS: one chain along K. Products of zero beyond K leave the sums' bits alone."""
    depths = tl.arange(0, DEPTH)[None, :]
    x_at += depths
    weight_at = rows_at[:, None] + depths
    sums = tl.zeros((WEIGHT_ROWS, TOKENS), tl.float32)
    for start in range(0, inputs, DEPTH):
        if EVEN:
            weights = tl.load(weight_at, mask=own, other=0.0)
            values = tl.load(x_at, mask=present, other=0.0)
        else:
            inside = start + depths < inputs
            weights = tl.load(weight_at, mask=own & inside, other=0.0)
            values = tl.load(x_at, mask=present & inside, other=0.0)
        sums = dot(weights, tl.trans(values), sums)
        weight_at += DEPTH
        x_at += DEPTH
    return sums


@triton.jit(do_not_specialize=["rows", "share", "ahead"])
def _linear_stream(
    x: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    rows: int,
    share: int,
    ahead: int,
    outputs: int,
    inputs: int,
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
) -> None:
    """`share` outputs of one block of tokens. Where PREFETCH, their first `ahead` weights are asked for early."""
    release_next()
    token_tiles = tl.cdiv(rows, TOKENS)
    first = tl.program_id(0) // token_tiles * share
    first_token = tl.program_id(0) % token_tiles * TOKENS
    end = tl.minimum(first + share, outputs)
    tokens = first_token + tl.arange(0, TOKENS)
    lines = first * PRODUCTS + tl.arange(0, WEIGHT_ROWS)
    own = lines < end * PRODUCTS
    rows_at = weight + lines.to(tl.int64) * inputs
    if PREFETCH:
        prefetch_rows(rows_at, own & (first_token == 0), ahead, inputs)
    wait_for_previous()
    x_at = x + tokens.to(tl.int64)[:, None] * x_stride
    present = (tokens < rows)[:, None]
    sums = chained_sums(x_at, rows_at, present, own[:, None], inputs, WEIGHT_ROWS, TOKENS, DEPTH, EVEN)
    if PRODUCTS == 2:
        sums = gated_sums(sums)
    store_outputs(sums, out, bias, residual, first, end, first_token, rows, out_stride, residual_stride, BIAS, RESIDUAL)


def linear_stream(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tile: Tile,
    gated: bool,
) -> None:
    """`linear`, or `gated_linear` where `gated`, cut by `tile`."""
    (rows, inputs), outputs = x.shape, out.shape[1]
    launch(
        _linear_stream,
        (triton.cdiv(outputs, tile.outputs) * triton.cdiv(rows, tile.tokens),),
        x,
        weight,
        out,
        bias,
        residual,
        rows,
        tile.outputs,
        tile.prefetch // 2,
        outputs,
        inputs,
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
    )
