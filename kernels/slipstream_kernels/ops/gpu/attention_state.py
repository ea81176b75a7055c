"""The arithmetic that every attention kernel shares: one recurrence over blocks, one fold over splits.

A state is the softmax of the positions seen so far; its rows, here called columns of a tile, are pairs of a query row
and a head. `peak` [columns] is the largest score rounded up to an integer, `weight` [columns] the sum of
exp2(score - peak), `sums` [columns, head_dim] the values weighted so; scores are in units of log2. All float32.
Peaks are integers so that moving a state to a higher one multiplies by a power of two, which rounds nothing: sums
depend on the order of their terms alone.

Columns lie on the 64-row side of every product, 16 to a warp, so that all sums over a column's positions are taken by
the same threads in the same order, whatever a tile's size. Whatever computes a column must call these functions alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.attention_form import FULL, HEAD_DIMS, AttentionForm
from slipstream_kernels.ops.gpu.fp8_rows import numbers_of
from slipstream_kernels.ops.gpu.launch import dot
from slipstream_kernels.ops.gpu.position_splits import BLOCK
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.gpu.soft_cap import tanh
from slipstream_kernels.ops.kv_cache.kv_codes import Fp8Rows, KVRows

_BLOCK = tl.constexpr(BLOCK)
_WIDE, _FEWER_STAGES = 256, 3
"""From so many elements on, no more stages fit the shared memory beside other programs' than these."""
_COLUMNS_OF_A_WARP = 16

_LOG2_E = tl.constexpr(math.log2(math.e))
NO_PEAK = tl.constexpr(-1e30)
"""Peak of a state that has seen no position: below any other, and finite, so that differences are numbers."""


def warps_of(columns: int) -> int:
    """Warps of a program whose tile has so many columns, 64 or 128."""
    assert columns in {64, 128}, columns
    return columns // _COLUMNS_OF_A_WARP


def stages_of(stages: int, head_dim: int) -> int:
    """Stages of a pipeline for heads of so many elements, of `stages` for fewer; any number gives the same bits."""
    return min(stages, _FEWER_STAGES) if head_dim >= _WIDE else stages


def score_scale(head_dim: int, form: AttentionForm = FULL) -> float:
    """What `block_products` are multiplied by: softmax's 1 / sqrt(head_dim), or what `form` says, in units of log2."""
    if form.cap:
        return math.log2(math.e) * form.cap
    return math.log2(math.e) * form.scale if form.scale else math.log2(math.e) / math.sqrt(head_dim)


def cap_scale(head_dim: int, form: AttentionForm) -> float:
    """CAP of `block_products`: what products are multiplied by before the tanh; 0: there is none."""
    return form.scale_of(head_dim) / form.cap if form.cap else 0.0


@dataclass(frozen=True, slots=True)
class AttentionPartials:
    """States of splits by row, query head and split, float32; only splits below the own block are written."""

    m: torch.Tensor
    """[rows, heads, splits] largest score in units of log2, rounded up to an integer"""
    l: torch.Tensor
    """[rows, heads, splits] sum of weights"""
    o: torch.Tensor
    """[rows, heads, splits, head_dim] weighted values, not normalised"""


def attention_partials(
    rows: int, heads: int, max_splits: int, head_dim: int, device: torch.device | str
) -> AttentionPartials:
    """Room for the states of `rows` rows with contexts of at most `max_splits` splits."""
    return AttentionPartials(
        torch.empty(rows, heads, max_splits, dtype=torch.float32, device=device),
        torch.empty(rows, heads, max_splits, dtype=torch.float32, device=device),
        torch.empty(rows, heads, max_splits, head_dim, dtype=torch.float32, device=device),
    )


def check_layout(q: torch.Tensor, keys: KVRows, values: KVRows, page_table: torch.Tensor) -> None:
    """Fail where tensors are not laid out as all attention kernels read them."""
    head_dim = q.shape[2]
    assert head_dim in HEAD_DIMS
    assert q.is_contiguous()
    assert keys.shape[2] == head_dim
    assert (keys.stride(1), keys.stride(2)) == (head_dim, 1)
    assert keys.stride(0) == values.stride(0)
    if isinstance(keys, Fp8Rows):
        assert isinstance(values, Fp8Rows)
        assert keys.scales.stride(0) == values.scales.stride(0) == keys.stride(0) // head_dim
    assert page_table.stride(1) == 1


@triton.jit
def power_of_two(exponent: tl.tensor) -> tl.tensor:
    """float32 2 ** `exponent` for integers of 0 and below, exactly; 0 below -126."""
    shifted = tl.maximum(exponent, -127.0).to(tl.int32) + 127
    return (shifted << 23).to(tl.float32, bitcast=True)


@triton.jit
def empty_state(COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state that has seen no position."""
    peak = tl.full((COLUMNS,), NO_PEAK, tl.float32)
    return peak, tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS, HEAD_DIM), tl.float32)


@triton.jit
def block_products(query: tl.tensor, key: tl.tensor, CAP: tl.constexpr = 0.0) -> tl.tensor:
    """float32 [columns, BLOCK]: products of bf16 query [columns, head_dim] and key [BLOCK, head_dim].

    Where CAP is not 0, tanh(CAP * product).
    """
    products = dot(query, tl.trans(key), tl.zeros((query.shape[0], key.shape[0]), tl.float32))
    if CAP != 0:
        products = tanh(products * CAP)
    return products


@triton.jit
def block_peak(products: tl.tensor, SCALE: tl.constexpr, REACH: tl.constexpr = 0) -> tl.tensor:
    """float32 [columns]: peak of a block whose products are [columns, BLOCK]; where REACH all may be masked."""
    peak = tl.ceil(tl.max(products, 1) * SCALE)
    return tl.maximum(peak, NO_PEAK) if REACH else peak


@triton.jit
def first_seen(position: tl.tensor, REACH: tl.constexpr) -> tl.tensor:
    """First position, or one below 0, that a row at `position` sees; REACH as of `AttentionForm`, not 0."""
    return position + 1 - REACH if REACH > 0 else position // -REACH * -REACH


@triton.jit
def window_start(position: tl.tensor, REACH: tl.constexpr) -> tl.tensor:
    """First position of the block that holds the first one which a row at `position` sees."""
    return tl.maximum(first_seen(position, REACH), 0) // _BLOCK * _BLOCK


@triton.jit
def within(products: tl.tensor, position: tl.tensor, own: tl.tensor, REACH: tl.constexpr) -> tl.tensor:
    """products [columns, BLOCK], -inf where a column at position `own` does not see `position`.

    A block that a column sees nothing of leaves its state as it is: which blocks a program reads changes no bit.
    """
    return tl.where(position[None, :] >= first_seen(own, REACH)[:, None], products, float("-inf"))


@triton.jit
def raised(
    peak: tl.tensor, weight: tl.tensor, sums: tl.tensor, higher: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state with `higher` as its peak, where that is no lower than its own."""
    shrink = power_of_two(peak - higher)
    return higher, weight * shrink, sums * shrink[:, None]


@triton.jit
def add_block(
    peak: tl.tensor, weight: tl.tensor, sums: tl.tensor, products: tl.tensor, value: tl.tensor, SCALE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Weight and sums with one more block, whose peak is no higher than the state's; operands as of `absorb_block`."""
    p = tl.exp2(tl.fma(products, SCALE, -peak[:, None]))
    return weight + tl.sum(p, 1), dot(rounded(p, tl.bfloat16), value, sums)


@triton.jit
def absorb_block(
    peak: tl.tensor, weight: tl.tensor, sums: tl.tensor, products: tl.tensor, value: tl.tensor, SCALE: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state after one more block: products [columns, BLOCK], -inf where masked, bf16 value [BLOCK, head_dim]."""
    peak, weight, sums = raised(peak, weight, sums, tl.maximum(peak, block_peak(products, SCALE)))
    weight, sums = add_block(peak, weight, sums, products, value, SCALE)
    return peak, weight, sums


@triton.jit
def fold(
    peak: tl.tensor,
    weight: tl.tensor,
    sums: tl.tensor,
    split_peak: tl.tensor,
    split_weight: tl.tensor,
    split_sums: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state of all splits up to the one given. As both factors are powers of two, only the sum rounds."""
    higher = tl.maximum(peak, split_peak)
    own, other = power_of_two(peak - higher), power_of_two(split_peak - higher)
    weight = weight * own + split_weight * other
    sums = tl.fma(split_sums, other[:, None], sums * own[:, None])
    return higher, weight, sums


@triton.jit
def add_sink(
    peak: tl.tensor, weight: tl.tensor, sums: tl.tensor, sinks: tl.tensor, head: tl.tensor, used: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Weight and sums of a finished state with one more score, that of each column's `head`, which has no value.

    `sinks` are float32, by head, in units of the natural logarithm; columns that are not `used` get none.
    """
    sink = tl.load(sinks + head, mask=used, other=NO_PEAK) * _LOG2_E
    higher = tl.maximum(peak, tl.ceil(sink))
    shrink = power_of_two(peak - higher)
    return weight * shrink + tl.exp2(sink - higher), sums * shrink[:, None]


@triton.jit
def paged_slots(
    pages: tl.tensor,
    positions: tl.tensor,
    PAGE_SIZE: tl.constexpr,
    seen: tl.tensor | None = None,
    FRESH: tl.constexpr = False,
) -> tl.tensor:
    """int32 slots of `positions` through a line of the page table; where not `seen`, a slot of page 0.

    FRESH ones, of `seen` positions, are read past the L1 cache.
    """
    entries = pages + positions // PAGE_SIZE
    if seen is None:
        page = tl.load(entries)
    elif FRESH:
        page = tl.load(entries, mask=seen, other=0, cache_modifier=".cg")
    else:
        page = tl.load(entries, mask=seen, other=0)
    return page * PAGE_SIZE + positions % PAGE_SIZE


@triton.jit
def path_slots(
    pages: tl.tensor,
    path: tl.tensor,
    write_slots: tl.tensor,
    position: tl.tensor,
    prefix_length: tl.tensor,
    end: tl.tensor,
    PAGE_SIZE: tl.constexpr,
) -> tl.tensor:
    """int32 slots of a row's `position`s below `end`: of the prefix by the page table, of ancestors by their rows."""
    committed = position < prefix_length
    drafted = (position < end) & (position >= prefix_length)
    ancestor = tl.load(path + position - prefix_length, mask=drafted, other=0, cache_modifier=".cg")
    own = tl.load(write_slots + ancestor, mask=drafted, other=0, cache_modifier=".cg")
    return tl.where(committed, paged_slots(pages, position, PAGE_SIZE, committed, True), own)


@triton.jit
def load_rows(
    base: tl.tensor,
    slots: tl.tensor,
    HEAD_DIM: tl.constexpr,
    seen: tl.tensor | None = None,
    FRESH: tl.constexpr = False,
    scales: tl.tensor | None = None,
    first_scale: int = 0,
) -> tl.tensor:
    """bf16 [BLOCK, HEAD_DIM] of the slots of one head's keys or values; zeros where not `seen`. FRESH as above.

    Where there are `scales`, float32 by slot from `first_scale` on, `base` is of codes.
    """
    addresses = base + slots.to(tl.int64)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    if seen is None:
        rows = tl.load(addresses)
    elif FRESH:
        rows = tl.load(addresses, mask=seen[:, None], other=0, cache_modifier=".cg")
    else:
        rows = tl.load(addresses, mask=seen[:, None], other=0)
    if scales is not None:
        scales += first_scale
        if seen is None:
            factors = tl.load(scales + slots)
        elif FRESH:
            factors = tl.load(scales + slots, mask=seen, other=0.0, cache_modifier=".cg")
        else:
            factors = tl.load(scales + slots, mask=seen, other=0.0)
        rows = numbers_of(rows, factors)
    return rows


@triton.jit
def load_columns(
    q: tl.tensor,
    first_row: tl.tensor,
    rows: tl.tensor,
    kv_head: tl.tensor,
    heads: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Queries of consecutive rows' heads of one KV head, as columns in the order (row, head).

    Returns bf16 [COLUMNS, HEAD_DIM], the columns' heads counted from the KV head's first of `first_row`, and whether a
    column is one.
    """
    column = tl.arange(0, COLUMNS)
    used = column < rows * GROUP
    offset = column // GROUP * heads + column % GROUP
    first = q + (first_row.to(tl.int64) * heads + kv_head * GROUP) * HEAD_DIM
    addresses = first + offset[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    return tl.load(addresses, mask=used[:, None], other=0.0), offset, used
