"""The arithmetic that every attention kernel shares: one recurrence over blocks, one fold over splits.

A state is the softmax of the positions seen so far, transposed: a column is one query row and head. `peak` [columns]
is the largest score, `weight` [columns] the sum of exp2(score - peak), `sums` [head_dim, columns] the values weighted
so; scores are in units of log2. All float32. Positions and head_dim lie on the 64-row side of every product, columns
on the other, so that a column's bits do not depend on how many there are; four warps share a block's 64 positions,
which fixes the order in which `weight` is summed. Whatever computes a row must call these functions alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import dot
from slipstream_kernels.ops.gpu.rounding import rounded

WARPS = 4
"""Warps of every attention program."""


def score_scale(head_dim: int) -> float:
    """What a product of query and key is multiplied by: softmax's 1 / sqrt(head_dim), in units of log2."""
    return math.log2(math.e) / math.sqrt(head_dim)


@dataclass(frozen=True, slots=True)
class AttentionPartials:
    """States of splits by row, query head and split, float32; only splits that hold a full block are written."""

    m: torch.Tensor
    """[rows, heads, splits] largest score in units of log2"""
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


def check_layout(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, page_table: torch.Tensor) -> None:
    """Fail where tensors are not laid out as all attention kernels read them."""
    head_dim = q.shape[2]
    assert head_dim in {64, 128}
    assert q.is_contiguous()
    assert keys.shape[2] == head_dim
    assert keys.stride()[1:] == (head_dim, 1)
    assert keys.stride() == values.stride()
    assert page_table.stride(1) == 1


@triton.jit
def empty_state(HEAD_DIM: tl.constexpr, COLUMNS: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state that has seen no position."""
    peak = tl.full((COLUMNS,), float("-inf"), tl.float32)
    return peak, tl.zeros((COLUMNS,), tl.float32), tl.zeros((HEAD_DIM, COLUMNS), tl.float32)


@triton.jit
def block_scores(key: tl.tensor, query: tl.tensor, SCALE: tl.constexpr) -> tl.tensor:
    """Scores float32 [BLOCK, columns] of bf16 key [BLOCK, head_dim] and query [columns, head_dim]."""
    zero = tl.zeros((key.shape[0], query.shape[0]), tl.float32)
    return dot(key, tl.trans(query), zero) * SCALE


@triton.jit
def absorb_block(
    peak: tl.tensor, weight: tl.tensor, sums: tl.tensor, scores: tl.tensor, value: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state after one more block: scores [BLOCK, columns], -inf where masked, and bf16 value [BLOCK, head_dim]."""
    higher = tl.maximum(peak, tl.max(scores, 0))
    base = tl.where(higher == float("-inf"), 0.0, higher)
    shrink = tl.exp2(peak - base)
    p = tl.exp2(scores - base[None, :])
    weight = weight * shrink + tl.sum(p, 0)
    sums = dot(tl.trans(value), rounded(p, tl.bfloat16), sums * shrink[None, :])
    return higher, weight, sums


@triton.jit
def fold(
    peak: tl.tensor,
    weight: tl.tensor,
    sums: tl.tensor,
    split_peak: tl.tensor,
    split_weight: tl.tensor,
    split_sums: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state of all splits up to the one given; an empty split leaves it as it is."""
    higher = tl.maximum(peak, split_peak)
    base = tl.where(higher == float("-inf"), 0.0, higher)
    own, other = tl.exp2(peak - base), tl.exp2(split_peak - base)
    unseen = split_peak == float("-inf")
    weight = tl.where(unseen, weight, weight * own + split_weight * other)
    sums = tl.where(unseen[None, :], sums, sums * own[None, :] + split_sums * other[None, :])
    return higher, weight, sums


@triton.jit
def paged_slots(
    pages: tl.tensor, positions: tl.tensor, PAGE_SIZE: tl.constexpr, seen: tl.tensor | None = None
) -> tl.tensor:
    """int64 slots of `positions` through a line of the page table; where not `seen`, a slot of page 0."""
    entries = pages + positions // PAGE_SIZE
    page = tl.load(entries) if seen is None else tl.load(entries, mask=seen, other=0)
    return page.to(tl.int64) * PAGE_SIZE + positions % PAGE_SIZE


@triton.jit
def load_rows(base: tl.tensor, slots: tl.tensor, HEAD_DIM: tl.constexpr, seen: tl.tensor | None = None) -> tl.tensor:
    """bf16 [BLOCK, HEAD_DIM] of the slots of one head's keys or values; zeros where not `seen`."""
    addresses = base + slots[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    return tl.load(addresses) if seen is None else tl.load(addresses, mask=seen[:, None], other=0.0)


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
