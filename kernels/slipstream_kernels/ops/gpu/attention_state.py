"""The arithmetic that every attention kernel shares: one recurrence over blocks, one fold over splits.

A state is the softmax of the positions seen so far; its rows, here called columns of a tile, are pairs of a query row
and a head. `peak` [columns] is the largest score rounded up to an integer, `weight` [columns] the sum of
exp2(score - peak), `sums` [columns, head_dim] the values weighted so; scores are in units of log2. All float32.
Peaks are integers so that moving a state to a higher one multiplies by a power of two, which rounds nothing: sums
depend on the order of their terms alone.

Columns lie on the 64-row side of every product, 16 to a warp, so that all sums over a column's positions are taken by
the same threads in the same order, whatever a tile's size. Beside codes weights too are summed by matrix instructions:
there a tile may also be TURNED, with positions or elements of a head on that side, so that it is as narrow as its
columns. Its products are [BLOCK, columns], its sums [head_dim, columns]. Every sum, also of weights, is one chain of
instructions into one accumulator, so that it is the same sum on whichever side its columns lie. Weights of codes are
held several times, [columns, 16] or, TURNED, [BLOCK, columns]: as a product leaves them, all copies alike.

Whatever computes a column must call these functions alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.attention_form import FULL, HEAD_DIMS, AttentionForm
from slipstream_kernels.ops.gpu.launch import dot
from slipstream_kernels.ops.gpu.position_splits import BLOCK
from slipstream_kernels.ops.gpu.rounding import rounded
from slipstream_kernels.ops.gpu.soft_cap import tanh
from slipstream_kernels.ops.kv_cache.kv_codes import Fp8Rows, KVRows

_BLOCK = tl.constexpr(BLOCK)
_WIDE, _FEWER_STAGES = 256, 3
"""From so many elements on, no more stages fit the shared memory beside other programs' than these."""
_COLUMNS_OF_A_WARP = 16
_FULL = 64
_WARPS_OF_A_BLOCK = 4

PLAIN, CODED, TURNED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""TILE of the functions below: of bfloat16 rows; of codes; of codes, with positions on the 64-row side."""
_ANY = tl.constexpr(16)
"""Columns of ones that weights are summed by: the fewest that a product takes."""

_LOG2_E = tl.constexpr(math.log2(math.e))
NO_PEAK = tl.constexpr(-1e30)
"""Peak of a state that has seen no position: below any other, and finite, so that differences are numbers."""


def warps_of(columns: int) -> int:
    """Warps of a program whose tile has so many columns: 64 or 128, or fewer where it is TURNED."""
    assert columns in {16, 32, 64, 128}, columns
    return max(columns // _COLUMNS_OF_A_WARP, _WARPS_OF_A_BLOCK)


def tile_of(keys: KVRows, columns: int) -> int:
    """TILE of so many columns: those of codes are turned where they do not fill the 64 rows of a product."""
    if not isinstance(keys, Fp8Rows):
        assert columns >= _FULL, columns
        return int(PLAIN.value)
    return int((TURNED if columns < _FULL else CODED).value)


def columns_of(rows: int, group: int, keys: KVRows, columns: int) -> int:
    """The fewest columns, of `columns` at most, of tiles that hold as many rows of `group` heads each.

    Rows that are not codes, and heads so wide that a block of codes does not fit a program's registers, leave it there.
    """
    if not isinstance(keys, Fp8Rows) or keys.shape[2] >= _WIDE:
        return columns
    return min(columns, max(int(_ANY.value), int(triton.next_power_of_2(rows * group))))


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
def of_columns(x: tl.tensor, TILE: tl.constexpr = PLAIN) -> tl.tensor:
    """What columns [columns] have, beside the positions or elements of a tile."""
    return x[None, :] if TILE == TURNED else x[:, None]


@triton.jit
def of_positions(x: tl.tensor, TILE: tl.constexpr = PLAIN) -> tl.tensor:
    """What positions [BLOCK] have, beside the columns of a tile."""
    return x[:, None] if TILE == TURNED else x[None, :]


@triton.jit
def of_weights(x: tl.tensor, TILE: tl.constexpr = PLAIN) -> tl.tensor:
    """What columns have, beside their weights."""
    return x if TILE == PLAIN else of_columns(x, TILE)


@triton.jit
def empty_state(
    COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE: tl.constexpr = PLAIN
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state that has seen no position."""
    peak = tl.full((COLUMNS,), NO_PEAK, tl.float32)
    if TILE == TURNED:
        return peak, tl.zeros((_BLOCK, COLUMNS), tl.float32), tl.zeros((HEAD_DIM, COLUMNS), tl.float32)
    elif TILE == CODED:  # noqa: RET505  what does not compile must not be looked at
        return peak, tl.zeros((COLUMNS, _ANY), tl.float32), tl.zeros((COLUMNS, HEAD_DIM), tl.float32)
    else:
        return peak, tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS, HEAD_DIM), tl.float32)


@triton.jit
def held_weight(weight: tl.tensor, TILE: tl.constexpr) -> tl.tensor:
    """Weight [columns] as a state of a tile that is not TURNED holds it."""
    return tl.broadcast_to(weight[:, None], (weight.shape[0], _ANY)) if TILE == CODED else weight


@triton.jit
def turned_back(weight: tl.tensor, sums: tl.tensor, TILE: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Weight [columns] and sums [columns, head_dim] of a state."""
    if TILE == TURNED:
        return tl.max(weight, 0), tl.trans(sums)
    elif TILE == CODED:  # noqa: RET505
        return tl.max(weight, 1), sums
    else:
        return weight, sums


@triton.jit
def block_products(
    query: tl.tensor,
    key: tl.tensor,
    CAP: tl.constexpr = 0.0,
    TILE: tl.constexpr = PLAIN,
    units: tl.tensor | None = None,
    scales: tl.tensor | None = None,
) -> tl.tensor:
    """float32 [columns, BLOCK]: products of query [columns, head_dim] and key [BLOCK, head_dim].

    Both are bfloat16, or a query `halved` with its units [columns], and numbers of keys with their scales [BLOCK].
    Where CAP is not 0, tanh(CAP * product). TURNED, [BLOCK, columns].
    """
    if TILE == TURNED:
        products = dot(key, tl.trans(query), tl.zeros((key.shape[0], query.shape[0]), tl.float32))
    else:
        products = dot(query, tl.trans(key), tl.zeros((query.shape[0], key.shape[0]), tl.float32))
    if TILE != PLAIN:
        products = products * of_columns(units, TILE) * of_positions(scales, TILE)
    if CAP != 0:
        products = tanh(products * CAP)
    return products


@triton.jit
def block_peak(
    products: tl.tensor, SCALE: tl.constexpr, REACH: tl.constexpr = 0, TILE: tl.constexpr = PLAIN
) -> tl.tensor:
    """float32 [columns]: peak of a block whose products are [columns, BLOCK]; where REACH all may be masked."""
    peak = tl.ceil(tl.max(products, 0 if TILE == TURNED else 1) * SCALE)
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
def within(
    products: tl.tensor, position: tl.tensor, own: tl.tensor, REACH: tl.constexpr, TILE: tl.constexpr = PLAIN
) -> tl.tensor:
    """products [columns, BLOCK], -inf where a column at position `own` does not see `position`.

    A block that a column sees nothing of leaves its state as it is: which blocks a program reads changes no bit.
    """
    seen = of_positions(position, TILE) >= of_columns(first_seen(own, REACH), TILE)
    return tl.where(seen, products, float("-inf"))


@triton.jit
def raised(
    peak: tl.tensor, weight: tl.tensor, sums: tl.tensor, higher: tl.tensor, TILE: tl.constexpr = PLAIN
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state with `higher` as its peak, where that is no lower than its own."""
    shrink = power_of_two(peak - higher)
    return higher, weight * of_weights(shrink, TILE), sums * of_columns(shrink, TILE)


@triton.jit
def add_block(
    peak: tl.tensor,
    weight: tl.tensor,
    sums: tl.tensor,
    products: tl.tensor,
    value: tl.tensor,
    SCALE: tl.constexpr,
    TILE: tl.constexpr = PLAIN,
    scales: tl.tensor | None = None,
) -> tuple[tl.tensor, tl.tensor]:
    """Weight and sums with one more block, whose peak is no higher than the state's; operands as of `absorb_block`.

    Weights beside codes go on in the accumulator that holds them: were a block's summed from zero and added, a compiler
    would take that for the chain where shapes allow it, and in some tiles alone.
    """
    p = tl.exp2(tl.fma(products, SCALE, of_columns(-peak, TILE)))
    if TILE == TURNED:
        ones = rounded(tl.full((_BLOCK, _BLOCK), 1.0, tl.float32), tl.bfloat16)
        sums = dot(tl.trans(value), rounded(p * of_positions(scales, TILE), tl.bfloat16), sums)
        return dot(ones, rounded(p, tl.bfloat16), weight), sums
    elif TILE == CODED:  # noqa: RET505
        ones = rounded(tl.full((_BLOCK, _ANY), 1.0, tl.float32), tl.bfloat16)
        weight = dot(rounded(p, tl.bfloat16), ones, weight)
        return weight, dot(rounded(p * of_positions(scales, TILE), tl.bfloat16), value, sums)
    else:
        return weight + tl.sum(p, 1), dot(rounded(p, tl.bfloat16), value, sums)


@triton.jit
def absorb_block(
    peak: tl.tensor,
    weight: tl.tensor,
    sums: tl.tensor,
    products: tl.tensor,
    value: tl.tensor,
    SCALE: tl.constexpr,
    TILE: tl.constexpr = PLAIN,
    scales: tl.tensor | None = None,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state after one more block: products [columns, BLOCK], -inf where masked, bf16 value [BLOCK, head_dim].

    scales: those of values that are numbers of codes, [BLOCK].
    """
    higher = tl.maximum(peak, block_peak(products, SCALE, TILE=TILE))
    peak, weight, sums = raised(peak, weight, sums, higher, TILE)
    weight, sums = add_block(peak, weight, sums, products, value, SCALE, TILE, scales)
    return peak, weight, sums


@triton.jit
def fold(
    peak: tl.tensor,
    weight: tl.tensor,
    sums: tl.tensor,
    split_peak: tl.tensor,
    split_weight: tl.tensor,
    split_sums: tl.tensor,
    TILE: tl.constexpr = PLAIN,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The state of all splits up to the one given. As both factors are powers of two, only the sum rounds."""
    higher = tl.maximum(peak, split_peak)
    own, other = power_of_two(peak - higher), power_of_two(split_peak - higher)
    weight = weight * of_weights(own, TILE) + split_weight * of_weights(other, TILE)
    sums = tl.fma(split_sums, of_columns(other, TILE), sums * of_columns(own, TILE))
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
