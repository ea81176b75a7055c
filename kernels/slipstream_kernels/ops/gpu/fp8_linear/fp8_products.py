"""Products of e4m3 activations with e4m3 weights, whose rows do not depend on how many there are, nor on the tile.

Every output is a chain over K in chunks of 128: a chunk's four wgmma instructions, of 32 elements each, add to an
accumulator that begins at zero and keeps some 14 bits, and behind them it is added to a sum of float32. Whichever
operand comes first, and however many rows and outputs a program has, the bits are the same:
`benchmarks.kernels.check_fp8_linear` compares them on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from slipstream_kernels.ops.gpu.fp8_linear.fp8_tile import CHUNK, Fp8Tile, fp8_tile
from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Weight
from slipstream_kernels.ops.gpu.gate_up import separate_gate_up
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear_blocks import rows_to_fetch
from slipstream_kernels.ops.gpu.linear_epilogue import gated_sums, store_outputs
from slipstream_kernels.ops.gpu.prefetch import prefetch_rows

_CHUNK = tl.constexpr(CHUNK)
_LINE = tl.constexpr(128)
"""Codes that one request brings."""


@triton.jit(do_not_specialize=["rows", "ahead"])
def _fp8_products(
    x: tl.tensor,
    weight: tl.tensor,
    weight_at: tl.tensor,
    x_scales: tl.tensor,
    weight_scales: tl.tensor,
    out: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    rows: int,
    ahead: int,
    weight_rows: int,
    inputs: int,
    out_stride: int,
    residual_stride: int,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    CHUNKS: tl.constexpr,
    TOKENS_FIRST: tl.constexpr,
    PRODUCTS: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    PREFETCH: tl.constexpr,
) -> None:
    """`x` and `weight` are descriptors of blocks [TOKENS, _CHUNK] and [OUTPUTS, _CHUNK], zero beyond their edges."""
    release_next()
    first_token, first = tl.program_id(0) * TOKENS, tl.program_id(1) * OUTPUTS
    tokens, lines = first_token + tl.arange(0, TOKENS), first + tl.arange(0, OUTPUTS)
    if PREFETCH:
        asking = (lines < weight_rows) & (first_token == 0)
        prefetch_rows(weight_at + lines.to(tl.int64) * inputs, asking, ahead, inputs, LINE=_LINE)
    wait_for_previous()
    sums = tl.zeros((TOKENS, OUTPUTS) if TOKENS_FIRST else (OUTPUTS, TOKENS), tl.float32)
    for start in range(0, inputs, CHUNKS * _CHUNK):
        for chunk in tl.static_range(CHUNKS):
            column = start + chunk * _CHUNK
            if TOKENS_FIRST:
                a, b = x.load([first_token, column]), tl.trans(weight.load([first, column]))
            else:
                a, b = weight.load([first, column]), tl.trans(x.load([first_token, column]))
            # Not `tl.dot(a, b, sums)`: that adds to `sums` within the instructions, or waits between them.
            sums += tl.dot(a, b)
    if TOKENS_FIRST:
        sums = tl.trans(sums)
    by_output = tl.load(weight_scales + lines, mask=lines < weight_rows, other=0.0)
    by_token = tl.load(x_scales + tokens, mask=tokens < rows, other=0.0)
    sums = sums * by_output[:, None] * by_token[None, :]
    if PRODUCTS == 2:
        sums = gated_sums(sums)
    store_outputs(
        sums, out, bias, residual, first // PRODUCTS, weight_rows // PRODUCTS, first_token, rows, out_stride,
        residual_stride, BIAS, RESIDUAL,
    )  # fmt: skip


def fp8_products(
    codes: torch.Tensor,
    code_scales: torch.Tensor,
    weight: Fp8Weight,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gated: bool = False,
    tile: Fp8Tile | None = None,
) -> None:
    """out = x weight^T + bias + residual, added in float32 in this order and rounded once.

    x: codes of e4m3, uint8 [rows, K], contiguous, times powers of two, float32 [rows]. The float32 sum over K is
    multiplied by the weight's scale, then by the token's. Else as `linear`; where `gated`, as `gated_linear`.
    `tile` overrules the layer's choice.
    """
    (rows, inputs), weight_rows = codes.shape, len(weight)
    assert inputs == weight.shape[1]
    assert out.shape == (rows, weight_rows // 2 if gated else weight_rows)
    assert codes.is_contiguous()
    assert weight.codes.is_contiguous()
    assert out.stride(1) == 1
    assert inputs % 16 == 0
    assert not gated or bias is residual is None
    tile = tile or fp8_tile(rows, weight_rows)
    e4m3 = torch.float8_e4m3fn
    launch(
        _fp8_products,
        (triton.cdiv(rows, tile.tokens), triton.cdiv(weight_rows, tile.outputs)),
        TensorDescriptor(
            codes.view(e4m3), [rows_to_fetch(codes, tile.tokens), inputs], [inputs, 1], [tile.tokens, CHUNK]
        ),
        TensorDescriptor(weight.codes.view(e4m3), [weight_rows, inputs], [inputs, 1], [tile.outputs, CHUNK]),
        weight.codes,
        code_scales,
        weight.scales,
        out,
        bias,
        residual,
        rows,
        tile.prefetch,
        weight_rows,
        inputs,
        out.stride(0),
        0 if residual is None else residual.stride(0),
        warps=tile.warps,
        stages=tile.stages,
        TOKENS=tile.tokens,
        OUTPUTS=tile.outputs,
        CHUNKS=tile.chunks,
        TOKENS_FIRST=tile.tokens_first,
        PRODUCTS=2 if gated else 1,
        BIAS=bias is not None,
        RESIDUAL=residual is not None,
        PREFETCH=tile.prefetch > 0,
    )


def fp8_products_reference(
    codes: torch.Tensor,
    code_scales: torch.Tensor,
    weight: Fp8Weight,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gated: bool = False,
) -> None:
    """The same in torch, with float64 sums; where `gated`, they are rounded to float32."""
    x, w = (each.view(torch.float8_e4m3fn).double() for each in (codes, weight.codes))
    sums = x @ w.T * weight.scales.double() * code_scales.double()[:, None]
    if gated:
        gate, up = separate_gate_up(sums.float(), dim=1).chunk(2, dim=1)
        out.copy_(torch.nn.functional.silu(gate) * up)
        return
    for addend in (bias, residual):
        if addend is not None:
            sums += addend.double()
    out.copy_(sums)
