"""Top-k, top-p and min-p: which tokens of a row may be sampled.

Candidates are lists of token ids in ascending order. Top-k and top-p keep the shortest prefix, in the order of
probability descending and id ascending, whose mass reaches a target; mass is a count or a probability. Nothing is
sorted but the few candidates at the edge: the others are told apart by buckets of their distance from the best.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32, pointer_f64, pointer_i32
from slipstream_kernels.ops.elementary import exp

BUCKETS = 1024
_PER_UNIT = np.float32(32)
"""Buckets per unit of logit below the best."""


@kernel
def _bucket(x: np.float32, peak: np.float32) -> Any:
    return np.int64(min((peak - x) * _PER_UNIT, np.float32(BUCKETS - 1)))


@kernel
def _sort_descending(ids: int, count: int, x: int, scratch: int) -> int:
    """Merge sort of int32 ids by x descending, stable. Returns the address of the result: `ids` or `scratch`."""
    values = pointer_f32(x)
    width = 1
    while width < count:
        source, target = pointer_i32(ids), pointer_i32(scratch)
        for start in range(0, count, 2 * width):
            middle, end = min(start + width, count), min(start + 2 * width, count)
            left, right = start, middle
            for i in range(start, end):
                if left < middle and (right >= end or values[source[left]] >= values[source[right]]):
                    target[i] = source[left]
                    left += 1
                else:
                    target[i] = source[right]
                    right += 1
        ids, scratch = scratch, ids
        width *= 2
    return ids


@kernel
def keep_prefix(ids: int, count: int, x: int, mass: int, target: float, peak: np.float32, scratch: int) -> int:
    """Keep the shortest prefix whose mass is at least `target`, one candidate at least; returns their number.

    Addresses: int32 candidates `ids`, rewritten in place; float32 x by token, none above `peak`; float32 mass by
    token; `scratch` for BUCKETS float64 and 2 `count` int32.
    """
    tokens, values, share = pointer_i32(ids), pointer_f32(x), pointer_f32(mass)
    sums = pointer_f64(scratch)
    edge_ids = scratch + BUCKETS * 8
    for bucket in range(BUCKETS):
        sums[bucket] = 0.0
    for i in range(count):
        sums[_bucket(values[tokens[i]], peak)] += np.float64(share[tokens[i]])
    edge = 0
    before = 0.0
    while edge < BUCKETS and before + sums[edge] < target:
        before += sums[edge]
        edge += 1
    if edge == BUCKETS:
        return count
    at_edge = pointer_i32(edge_ids)
    edge_count = 0
    for i in range(count):
        if _bucket(values[tokens[i]], peak) == edge:
            at_edge[edge_count] = tokens[i]
            edge_count += 1
    order = pointer_i32(_sort_descending(edge_ids, edge_count, x, edge_ids + edge_count * 4))
    last = 0
    before += np.float64(share[order[0]])
    while before < target and last + 1 < edge_count:
        last += 1
        before += np.float64(share[order[last]])
    return _keep_down_to(ids, count, x, values[order[last]], order[last])


@kernel
def _keep_down_to(ids: int, count: int, x: int, lowest: np.float32, last: int) -> int:
    """Keep candidates above `lowest`, and those equal to it with an id of at most `last`."""
    tokens, values = pointer_i32(ids), pointer_f32(x)
    kept = 0
    for i in range(count):
        token = tokens[i]
        if values[token] > lowest or (values[token] == lowest and token <= last):
            tokens[kept] = token
            kept += 1
    return kept


@kernel
def filter_row(
    x: int, vocab_size: int, top_k: int, top_p: np.float32, min_p: np.float32, peak: np.float32, ids: int, weights: int,
    scratch: int,
) -> int:  # fmt: skip
    """Candidates of a row of processed logits, written to `ids` ascending; returns their number.

    Addresses: float32 x [vocab_size]; int32 ids and float32 weights, scratch of the same size; scratch as for
    `keep_prefix`. Tokens at minus infinity are never candidates.
    """
    values, tokens, weight = pointer_f32(x), pointer_i32(ids), pointer_f32(weights)
    count = 0
    for i in range(vocab_size):
        tokens[count] = i
        count += values[i] > -np.inf
    if 0 < top_k < count:
        for i in range(vocab_size):
            weight[i] = np.float32(1)
        count = keep_prefix(ids, count, x, weights, np.float64(top_k), peak, scratch)
    if top_p < np.float32(1) or min_p > np.float32(0):
        for i in range(vocab_size):
            weight[i] = exp(values[i] - peak)
    if top_p < np.float32(1):
        total = 0.0
        for i in range(count):
            total += np.float64(weight[tokens[i]])
        count = keep_prefix(ids, count, x, weights, np.float64(top_p) * total, peak, scratch)
    if min_p > np.float32(0):
        kept = 0
        for i in range(count):
            token = tokens[i]
            if weight[token] >= min_p:
                tokens[kept] = token
                kept += 1
        count = kept
    return count


def filter_reference(x: npt.NDArray[np.float32], top_k: int, top_p: float, min_p: float) -> npt.NDArray[np.int64]:
    """Candidates of processed logits [vocab], ascending, by a full sort and float64 sums in numpy."""
    order = np.argsort(-x.astype(np.float64), kind="stable")
    order = order[np.isfinite(x[order])]
    if top_k > 0:
        order = order[:top_k]
    weights = np.exp(x[order].astype(np.float64) - float(x[order[0]]))
    if top_p < 1:
        needed = int(np.searchsorted(np.cumsum(weights), top_p * weights.sum(), side="left")) + 1
        order, weights = order[:needed], weights[:needed]
    return np.sort(order[weights >= min_p])
