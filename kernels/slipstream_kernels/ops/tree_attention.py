"""Attention of each row to its own path: absolute positions 0..p, pages first, then ancestor slots of the tree.

A row's result is a function of its query and of the keys and values at its positions, in that order. Where they are
stored, the page size, the other rows and the chunks they came in never matter: scores are computed one by one, the
maximum is exact, and sums run over positions in 16 chains (position modulo 16) for the weights and in one chain for
the values. Slots that a row does not attend to are never read. Rows of `kv_codes` give the bits of
the numbers for which they stand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numba import types

from slipstream_kernels.jit import intrinsics as llvm
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import largest, pointer_f32, pointer_i32, total
from slipstream_kernels.ops.attention_form import FULL, AttentionForm
from slipstream_kernels.ops.elementary import exp
from slipstream_kernels.ops.kv_cache.host_rows import load_decoded, load_scale
from slipstream_kernels.ops.soft_cap import soft_cap

_TOGETHER = 8
"""Positions whose scores are computed side by side."""


class _Row(NamedTuple):
    """A slot's vector in the midst of a kernel: its address and, of codes, its scale in every lane."""

    address: Any
    scale: Any

    def load(self, builder: Any, index: Any) -> Any:
        """The vector's elements from `index` on."""
        if self.scale is None:
            return llvm.load_vector(builder, self.address, index)
        return load_decoded(builder, self.address, index, self.scale)


def _slot_row(builder: Any, base: Any, scales: Any, slots: Any, index: Any, head_dim: Any, *, coded: bool) -> _Row:
    """The vector of the slot at `slots[index]`, of float32, or of codes whose scales are at `scales`."""
    slot = builder.sext(builder.load(llvm.pointer(builder, slots, llvm.I32, index)), llvm.I64)
    size = head_dim if coded else builder.mul(head_dim, llvm.constant(4))
    return _Row(builder.add(base, builder.mul(slot, size)), load_scale(builder, scales, slot) if coded else None)


def _scores(vectors: int, *, coded: bool) -> Callable[[int, int, int, int, int, int, int], None]:
    """Intrinsic (query, keys, slots, count, head_dim, out, scales): out[i] = query . keys[slots[i]].

    head_dim is a multiple of 16 times `vectors`, which only unrolls: lane l of a product sums dimensions l, l + 16, ..
    in one chain.
    """

    def emit(builder: Any, values: Any) -> None:
        query, keys, slots, count, head_dim, out, scales = values

        def positions(first: Any, _carried: list[Any]) -> list[Any]:
            indices = [builder.add(first, llvm.constant(i)) for i in range(_TOGETHER)]
            rows = [_slot_row(builder, keys, scales, slots, index, head_dim, coded=coded) for index in indices]

            def products(start: Any, sums: list[Any]) -> list[Any]:
                for vector in range(vectors):
                    k = builder.add(start, llvm.constant(vector * llvm.LANES))
                    q = llvm.load_vector(builder, query, k)
                    sums = [llvm.fma(builder, q, row.load(builder, k), s) for row, s in zip(rows, sums, strict=True)]
                return sums

            sums = llvm.loop(builder, head_dim, vectors * llvm.LANES, [llvm.zero_vector()] * _TOGETHER, products)
            for index, vector in zip(indices, sums, strict=True):
                builder.store(llvm.lane_sum(builder, vector), llvm.pointer(builder, out, llvm.F32, index))
            return []

        llvm.loop(builder, count, _TOGETHER, [], positions)

    return llvm.define(types.void(*[types.int64] * 7), emit, 7)


def _weighted_sum(vectors: int, *, coded: bool) -> Callable[[int, int, int, int, int, int, int, int], None]:
    """Intrinsic (weights, values, slots, count, head_dim, out, column, scales).

    out[:16 * vectors] = sum of weighted rows.
    """

    def emit(builder: Any, values: Any) -> None:
        weights, rows, slots, count, head_dim, out, column, scales = values

        def position(index: Any, sums: list[Any]) -> list[Any]:
            weight = llvm.splat(builder, builder.load(llvm.pointer(builder, weights, llvm.F32, index), align=4))
            row = _slot_row(builder, rows, scales, slots, index, head_dim, coded=coded)
            parts = [builder.add(column, llvm.constant(llvm.LANES * i)) for i in range(vectors)]
            return [llvm.fma(builder, weight, row.load(builder, part), s) for part, s in zip(parts, sums, strict=True)]

        sums = llvm.loop(builder, count, 1, [llvm.zero_vector()] * vectors, position)
        for i, vector in enumerate(sums):
            llvm.store_vector(builder, vector, out, builder.add(column, llvm.constant(llvm.LANES * i)))

    return llvm.define(types.void(*[types.int64] * 8), emit, 8)


_scores_1, _scores_4 = (_scores(vectors, coded=False) for vectors in (1, 4))
_weighted_sum_1, _weighted_sum_4, _weighted_sum_8 = (_weighted_sum(vectors, coded=False) for vectors in (1, 4, 8))
_coded_scores = _scores(1, coded=True)
_coded_sum_1, _coded_sum_4 = (_weighted_sum(vectors, coded=True) for vectors in (1, 4))


@kernel
def list_slots(
    page_table: int, page_size: int, prefix_length: int, ancestors: int, num_ancestors: int, reach: int, slots: int
) -> int:
    """Write the slots of the positions that a row sees, in order; return how many there are.

    reach: of `AttentionForm`: its last `reach` positions, all where it is 0, those of its chunk where it is below.
    Addresses of int32: the line of the page table, the row's ancestor slots, and `slots`, with room for seven more
    entries than positions.
    """
    pages, path, out = pointer_i32(page_table), pointer_i32(ancestors), pointer_i32(slots)
    length = prefix_length + num_ancestors
    first = 0
    if reach > 0:
        first = max(length - reach, 0)
    elif reach < 0:
        first = (length - 1) // -reach * -reach
    position = first
    while position < prefix_length:
        page = position // page_size
        end = min((page + 1) * page_size, prefix_length)
        start = pages[page] * page_size - page * page_size
        for place in range(position, end):
            out[place - first] = start + place
        position = end
    for place in range(max(prefix_length, first), length):
        out[place - first] = path[place - prefix_length]
    count = length - first
    for i in range(count, (count + _TOGETHER - 1) // _TOGETHER * _TOGETHER):
        out[i] = out[count - 1]
    return count


@kernel
def _softmax(weights: int, count: int, scale: Any, cap: Any, sink: Any) -> Any:
    """Weights, not normalised, in the place of `count` products; returns what each is to be multiplied by."""
    w = pointer_f32(weights)
    width = (count + 15) // 16 * 16
    for i in range(count, width):
        w[i] = -np.inf
    if cap > 0:
        for i in range(count):
            w[i] = soft_cap(w[i] * scale, cap)
        scale = np.float32(1)
    if sink > -np.inf:
        for i in range(count):
            w[i] *= scale
        scale = np.float32(1)
    peak = max(largest(weights, width), sink)
    for i in range(count):
        w[i] = exp((w[i] - peak) * scale)
    for i in range(count, width):
        w[i] = np.float32(0)
    weight = total(weights, width)
    if sink > -np.inf:
        weight += exp(sink - peak)
    return np.float32(1) / weight if peak < np.inf else np.float32(np.nan)


@kernel
def _normalise(out: int, size: int, share: Any) -> None:
    target = pointer_f32(out)
    for i in range(size):
        target[i] *= share


@kernel
def attend(
    query: int, keys: int, values: int, slots: int, count: int, head_dim: int, scale: Any, cap: Any, sink: Any,
    weights: int, out: int,
) -> None:  # fmt: skip
    """One head of one row over the `count` listed slots: out = softmax(scale q K^T) V.

    Scores s are cap * tanh(s / cap) where `cap` is not 0. `sink` is one more score, of a position without a value; of
    a head that has none it is -inf. Addresses: float32 query and out [head_dim]; keys and values [slots, head_dim] of
    the head; int32 slots from `list_slots`; float32 scratch `weights` with room for `count` rounded up to 16. scale,
    cap and sink are float32. head_dim is a multiple of 16. A NaN or an infinite score makes all of `out` NaN; an
    infinite one does not where there is a cap.
    """
    if head_dim % 64 == 0:
        _scores_4(query, keys, slots, count, head_dim, weights, 0)
    else:
        _scores_1(query, keys, slots, count, head_dim, weights, 0)
    share = _softmax(weights, count, scale, cap, sink)
    column = 0
    while column < head_dim:
        if head_dim - column >= 128:
            _weighted_sum_8(weights, values, slots, count, head_dim, out, column, 0)
            column += 128
        elif head_dim - column >= 64:
            _weighted_sum_4(weights, values, slots, count, head_dim, out, column, 0)
            column += 64
        else:
            _weighted_sum_1(weights, values, slots, count, head_dim, out, column, 0)
            column += 16
    _normalise(out, head_dim, share)


@kernel
def attend_coded(
    query: int, keys: int, key_scales: int, values: int, value_scales: int, slots: int, count: int, head_dim: int,
    scale: Any, cap: Any, sink: Any, weights: int, out: int,
) -> None:  # fmt: skip
    """As `attend`, of codes [slots, head_dim] and float32 scales [slots] of the head's keys and values.

    Bits are those of `attend` over the numbers that the codes stand for.
    """
    _coded_scores(query, keys, slots, count, head_dim, weights, key_scales)
    share = _softmax(weights, count, scale, cap, sink)
    column = 0
    while column < head_dim:
        if head_dim - column >= 64:
            _coded_sum_4(weights, values, slots, count, head_dim, out, column, value_scales)
            column += 64
        else:
            _coded_sum_1(weights, values, slots, count, head_dim, out, column, value_scales)
            column += 16
    _normalise(out, head_dim, share)


@kernel
def _attention(
    q: int, rows: int, heads: int, head_dim: int, keys: int, values: int, kv_heads: int, num_slots: int,
    page_table: npt.NDArray[np.int32], page_lines: npt.NDArray[np.int32], page_size: int,
    prefix_lengths: npt.NDArray[np.int32], ancestors: npt.NDArray[np.int32], num_ancestors: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32], weights: npt.NDArray[np.float32], reach: int, scale: Any, cap: Any,
    sinks: npt.NDArray[np.float32], out: int,
) -> None:  # fmt: skip
    for row in range(rows):
        line = page_table.ctypes.data + page_lines[row] * page_table.shape[1] * 4
        path = ancestors.ctypes.data + row * ancestors.shape[1] * 4
        count = list_slots(line, page_size, prefix_lengths[row], path, num_ancestors[row], reach, slots.ctypes.data)
        for head in range(heads):
            store = head // (heads // kv_heads) * num_slots * head_dim * 4
            offset = (row * heads + head) * head_dim * 4
            attend(
                q + offset, keys + store, values + store, slots.ctypes.data, count, head_dim, scale, cap, sinks[head],
                weights.ctypes.data, out + offset,
            )  # fmt: skip


def float32_scale(form: AttentionForm, head_dim: int) -> np.float32:
    """What `attend` multiplies products by."""
    return np.float32(form.scale) if form.scale else np.float32(1) / np.sqrt(np.float32(head_dim))


def tree_attention(
    q: npt.NDArray[np.float32],
    keys: npt.NDArray[np.float32],
    values: npt.NDArray[np.float32],
    *,
    page_size: int,
    page_table: npt.NDArray[np.int32],
    page_lines: npt.NDArray[np.int32],
    prefix_lengths: npt.NDArray[np.int32],
    ancestor_slots: npt.NDArray[np.int32],
    num_ancestors: npt.NDArray[np.int32],
    form: AttentionForm = FULL,
    sinks: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """float32 q [rows, heads, head_dim] over keys, values [kv_heads, slots, head_dim]: float32 like q.

    The int32 plan is that of `RowBatch`. Every row attends to one position at least. sinks: float32 [heads], a score
    beside those of positions, which takes its share of the softmax and has no value.
    """
    q = np.ascontiguousarray(q)
    rows, heads, head_dim = q.shape
    kv_heads, num_slots, _ = keys.shape
    room = int((prefix_lengths + num_ancestors).max(initial=0)) + 16
    out = np.empty_like(q)
    sinks = np.full(heads, -np.inf, np.float32) if sinks is None else sinks
    _attention(
        q.ctypes.data, rows, heads, head_dim, keys.ctypes.data, values.ctypes.data, kv_heads, num_slots,
        page_table, page_lines, page_size, prefix_lengths, ancestor_slots, num_ancestors,
        np.empty(room, np.int32), np.empty(room, np.float32), form.reach, float32_scale(form, head_dim),
        np.float32(form.cap), sinks, out.ctypes.data,
    )  # fmt: skip
    return out


def tree_attention_reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    page_size: int,
    page_table: torch.Tensor,
    page_lines: torch.Tensor,
    prefix_lengths: torch.Tensor,
    ancestor_slots: torch.Tensor,
    num_ancestors: torch.Tensor,
    form: AttentionForm = FULL,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same in torch, row by row."""
    groups = q.shape[1] // keys.shape[0]
    out = torch.empty_like(q)
    for row in range(q.shape[0]):
        positions = torch.arange(int(prefix_lengths[row]))
        pages = page_table[int(page_lines[row]), positions // page_size].long()
        path = ancestor_slots[row, : int(num_ancestors[row])].long()
        slots = torch.cat([pages * page_size + positions % page_size, path])
        slots = slots[form.first_seen(len(slots) - 1) :]
        k = keys[:, slots].repeat_interleave(groups, 0)
        v = values[:, slots].repeat_interleave(groups, 0)
        scores = torch.einsum("hd,hpd->hp", q[row], k) * form.scale_of(q.shape[2])
        scores = form.cap * torch.tanh(scores / form.cap) if form.cap else scores
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None].to(scores.dtype)], 1)
        out[row] = torch.einsum("hp,hpd->hd", scores.softmax(-1)[:, : len(slots)], v)
    return out
