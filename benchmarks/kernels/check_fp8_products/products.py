"""Products of e4m3 operands by several schemes, of which one became that of `ops.gpu.fp8_linear`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import codes_and_scale, quantise_rows
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.linear_epilogue import gated_sums, store_outputs

CHUNK = 128
"""Elements along K that share a scale, where scales are those of blocks."""
_CHUNK = tl.constexpr(CHUNK)


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a product means: the scales' shapes, and where sums leave the matrix instructions' accumulator."""

    blocks: bool
    """Scales of a token's 128 elements and of 128 x 128 weights, applied at the end of each chunk. Else a scale a token
    and a scale an output, applied to the sum over K."""

    imprecise: int | None
    """`max_num_imprecise_acc`: elements along K after which the accumulator is added to sums of float32; 32: after
    every instruction of Hopper; None: not before the end of K, or of the chunk where scales are those of blocks. Of 0
    Triton makes float16 instructions, which keep all bits."""

    @property
    def name(self) -> str:
        acc = "default" if self.imprecise is None else self.imprecise
        return f"{'blocks' if self.blocks else 'rows'}, acc {acc}"


SCHEMES = (
    *(Scheme(False, imprecise) for imprecise in (0, 32, CHUNK, None)),
    *(Scheme(True, imprecise) for imprecise in (0, 32, None)),
)


@dataclass(frozen=True, slots=True)
class SchemeTile:
    """One program's share: `tokens` rows times `outputs` weight rows, in steps of `depth` along K."""

    tokens: int
    outputs: int
    warps: int
    tokens_first: bool
    """Tokens are the first operand of the product, weight rows the second."""

    depth: int = CHUNK
    stages: int = 3

    @property
    def name(self) -> str:
        order = "tokens first" if self.tokens_first else "outputs first"
        return f"{self.tokens} x {self.outputs} x {self.depth}, {self.warps} warps, {order}"


@dataclass(frozen=True, slots=True)
class Fp8Operands:
    """x [rows, K] and weight [N, K] of float8_e4m3fn, and float32 scales.

    x_scales: [1, rows], of blocks [K / 128, rows]. weight_scales: [N, 1], of blocks [ceil(N / 128), K / 128].
    """

    x: torch.Tensor
    weight: torch.Tensor
    x_scales: torch.Tensor
    weight_scales: torch.Tensor

    def rows(self, index: torch.Tensor) -> Fp8Operands:
        """The rows of x that `index` names, in its order."""
        x = self.x.view(torch.uint8)[index].view(torch.float8_e4m3fn)
        return Fp8Operands(x, self.weight, self.x_scales[:, index].contiguous(), self.weight_scales)


@triton.jit(do_not_specialize=["rows", "scale_stride"])
def _fp8_products(
    x: tl.tensor,
    weight: tl.tensor,
    x_scales: tl.tensor,
    weight_scales: tl.tensor,
    out: tl.tensor,
    residual: tl.tensor,
    rows: int,
    scale_stride: int,
    weight_rows: int,
    inputs: int,
    out_stride: int,
    residual_stride: int,
    TOKENS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    DEPTH: tl.constexpr,
    BLOCKS: tl.constexpr,
    IMPRECISE: tl.constexpr,
    TOKENS_FIRST: tl.constexpr,
    PRODUCTS: tl.constexpr,
    RESIDUAL: tl.constexpr,
) -> None:
    """`x` and `weight` are descriptors of blocks [TOKENS, DEPTH] and [OUTPUTS, DEPTH], zero beyond their edges."""
    release_next()
    first_token, first = tl.program_id(0) * TOKENS, tl.program_id(1) * OUTPUTS
    tokens, lines = first_token + tl.arange(0, TOKENS), first + tl.arange(0, OUTPUTS)
    token_at = tokens[:, None] if TOKENS_FIRST else tokens[None, :]
    line_at = lines[None, :] if TOKENS_FIRST else lines[:, None]
    present, own = token_at < rows, line_at < weight_rows
    wait_for_previous()
    sums = tl.zeros((TOKENS, OUTPUTS) if TOKENS_FIRST else (OUTPUTS, TOKENS), tl.float32)
    for start in range(0, inputs, DEPTH):
        if TOKENS_FIRST:
            a, b = x.load([first_token, start]), tl.trans(weight.load([first, start]))
        else:
            a, b = weight.load([first, start]), tl.trans(x.load([first_token, start]))
        if BLOCKS:
            chunk = start // _CHUNK
            by_token = tl.load(x_scales + chunk * scale_stride + token_at, mask=present, other=0.0)
            block_at = line_at // _CHUNK * tl.cdiv(inputs, _CHUNK) + chunk
            by_output = tl.load(weight_scales + block_at, mask=own, other=0.0)
            part = tl.dot(a, b, max_num_imprecise_acc=IMPRECISE)
            sums = tl.fma(part, by_token * by_output, sums)
        else:
            sums = tl.dot(a, b, sums, max_num_imprecise_acc=IMPRECISE)
    if not BLOCKS:
        by_token = tl.load(x_scales + token_at, mask=present, other=0.0)
        by_output = tl.load(weight_scales + line_at, mask=own, other=0.0)
        sums *= by_token * by_output
    if TOKENS_FIRST:
        sums = tl.trans(sums)
    if PRODUCTS == 2:
        sums = gated_sums(sums)
    store_outputs(
        sums, out, None, residual, first // PRODUCTS, weight_rows // PRODUCTS, first_token, rows, out_stride,
        residual_stride, False, RESIDUAL,
    )  # fmt: skip


class _Kept:
    """A kernel that keeps what Triton compiled of it for the last launch."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel
        self.compiled: Any = None

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: Any, **options: Any) -> None:
            self.compiled = self._kernel[grid](*args, **options)

        return run


def fp8_products(
    given: Fp8Operands,
    out: torch.Tensor,
    scheme: Scheme,
    tile: SchemeTile,
    *,
    gated: bool = False,
    residual: torch.Tensor | None = None,
) -> Any:
    """out = x weight^T with the scales, plus `residual`; float32 or bfloat16 [rows, N].

    Where `gated`, out [rows, N / 2] is silu(gate) * up, of weight rows in the order of `gate_up.interleave_gate_up`.
    Returns what Triton compiled.
    """
    (rows, inputs), weight_rows = given.x.shape, len(given.weight)
    assert not scheme.blocks or (tile.depth == CHUNK and inputs % CHUNK == 0)
    kept = _Kept(_fp8_products)
    launch(
        kept,
        (triton.cdiv(rows, tile.tokens), triton.cdiv(weight_rows, tile.outputs)),
        TensorDescriptor(given.x, [rows, inputs], [inputs, 1], [tile.tokens, tile.depth]),
        TensorDescriptor(given.weight, [weight_rows, inputs], [inputs, 1], [tile.outputs, tile.depth]),
        given.x_scales,
        given.weight_scales,
        out,
        residual,
        rows,
        given.x_scales.stride(0),
        weight_rows,
        inputs,
        out.stride(0),
        0 if residual is None else residual.stride(0),
        warps=tile.warps,
        stages=tile.stages,
        TOKENS=tile.tokens,
        OUTPUTS=tile.outputs,
        DEPTH=tile.depth,
        BLOCKS=scheme.blocks,
        IMPRECISE=scheme.imprecise,
        TOKENS_FIRST=tile.tokens_first,
        PRODUCTS=2 if gated else 1,
        RESIDUAL=residual is not None,
    )
    return kept.compiled


def instructions(ptx: str) -> list[str]:
    """The matrix instructions of a kernel, with their sizes along K and the types of result and operands."""
    found = re.findall(r"\b(wgmma\.mma_async|mma)\.sync\.aligned\.m\d+n\d+(k\d+)\.(\S+)", ptx)
    return sorted({f"{name} {depth} {types.replace('row.col.', '')}" for name, depth, types in found})


@triton.jit
def _quantise_blocks(
    x: tl.tensor, codes: tl.tensor, scales: tl.tensor, inputs: int, scale_stride: int, WIDTH: tl.constexpr
) -> None:
    release_next()
    wait_for_previous()
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = group * WIDTH + tl.arange(0, WIDTH)
    made, scale = codes_and_scale(tl.load(x + token * inputs + columns).to(tl.float32))
    tl.store(scales + group * scale_stride + token, scale)
    tl.store(codes + token * inputs + columns, made)


def quantise(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    """Codes uint8 [rows, K] of bfloat16 x, and scales [1, rows] of tokens or [K / 128, rows] of their chunks.

    A scale is the least power of two with which no element exceeds 448, as of keys and values.
    """
    rows, inputs = x.shape
    if len(scales) == 1:
        quantise_rows(x, codes, scales[0])
        return
    grid = rows, len(scales)
    launch(_quantise_blocks, grid, x, codes, scales, inputs, scales.stride(0), warps=1, WIDTH=CHUNK)
