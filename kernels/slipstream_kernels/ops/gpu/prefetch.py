"""Weights drawn into the L2 cache ahead of their use.

Weights never change while a pass runs, so a program may ask for them before `wait_for_previous`, while the kernels in
front of it still run. Asking changes no value. Where the device has no bulk prefetch these functions do nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import _DEPENDENT

_BULK = tl.constexpr(_DEPENDENT.value)  # dependent launch and bulk prefetch came with the same devices
_PIECE = tl.constexpr(2048)


@triton.jit
def prefetch_pieces(addresses: tl.tensor, sizes: tl.tensor) -> None:
    """Ask for `sizes` bytes (int32, multiples of 16, 0 for none) at each of `addresses` (16-byte aligned pointers)."""
    if _BULK:
        tl.inline_asm_elementwise(
            """{
            .reg .pred some;
            setp.ne.s32 some, $2, 0;
            @some cp.async.bulk.prefetch.L2.global [$1], $2;
            mov.u32 $0, 0;
            }""",
            "=r,l,r",
            [addresses.to(tl.int64, bitcast=True), sizes],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def prefetch_rows(rows_at: tl.tensor, own: tl.tensor, start: tl.tensor, size: tl.tensor, inputs: tl.tensor) -> None:
    """Ask for `size` columns (a multiple of 16) from `start` on, up to `inputs`, of each of the bfloat16 rows `own`.

    `rows_at` points to the rows' first columns. Every row takes two requests.
    """
    if _BULK:
        half = size // 2
        columns = start + tl.arange(0, 2)[None, :] * half
        sizes = tl.minimum(tl.maximum(inputs - columns, 0), half) * 2
        prefetch_pieces(rows_at[:, None] + columns, tl.where(own[:, None], sizes, 0))


@triton.jit
def prefetch_step(
    rows_at: tl.tensor, own: tl.tensor, start: tl.tensor, ahead: tl.tensor, inputs: tl.tensor, DEPTH: tl.constexpr
) -> None:
    """Called at each step along K: keep `prefetch_rows` `ahead` columns, a multiple of 512, in front of `start`."""
    run: tl.constexpr = max(DEPTH, 512)
    first = start % run == 0
    prefetch_rows(rows_at, own & first, start + ahead, run, inputs)


@triton.jit
def prefetch_weight(weight: tl.tensor, size: tl.tensor, program: tl.tensor, programs: tl.tensor) -> None:
    """Ask for this program's share of the first `size` bytes (a multiple of 16) of `weight`.

    `program` of `programs` equal callers takes every `programs`-th run of 128 pieces of 2 KB. More bytes than the cache
    holds drive out those that were asked for first.
    """
    if _BULK:
        start = weight.to(tl.pointer_type(tl.uint8), bitcast=True)
        for run in range(program, tl.cdiv(size, 128 * _PIECE), programs):
            offsets = (tl.cast(run, tl.int64) * 128 + tl.arange(0, 128)) * _PIECE
            sizes = tl.minimum(tl.maximum(size - offsets, 0), _PIECE)
            prefetch_pieces(start + offsets, sizes.to(tl.int32))
