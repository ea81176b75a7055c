"""Rows by the experts that compute them, and the sum of what the experts make of each row.

A pair is a row and one of its experts; pair p is the expert at place p % chosen of row p // chosen. What a pair
computes, and the order in which a row's pairs are added, do not depend on where the pair stands among those of its
expert.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32, pointer_i32
from slipstream_kernels.ops.elementary import exp
from slipstream_kernels.ops.linear import ROW_GROUP

ITEM = 3
"""Words of an item: an expert, the first of its places, and how many of them."""


@kernel
def most_items(pairs: int, experts: int) -> int:
    """Items that so many pairs are at most."""
    return min(pairs, experts + pairs // ROW_GROUP)


@kernel
def group_pairs(ids: int, pairs: int, experts: int, starts: int, places: int, items: int) -> int:
    """Give each pair a place among those of its expert; returns how many experts have any.

    Addresses of int32: ids [pairs], the pairs' experts; starts [experts], for the kernel's own use; places [pairs],
    where the places of an expert lie one after the other and experts by rising id; items [most_items, ITEM], each
    `ROW_GROUP` places of an expert at most, and none behind those that there are.
    """
    expert_of, start, place, item = pointer_i32(ids), pointer_i32(starts), pointer_i32(places), pointer_i32(items)
    for expert in range(experts):
        start[expert] = 0
    for pair in range(pairs):
        start[expert_of[pair]] += 1
    first, count, awake = 0, 0, 0
    for expert in range(experts):
        end = first + start[expert]
        awake += end > first
        start[expert] = first
        while first < end:
            rows = min(end - first, ROW_GROUP)
            item[count * ITEM], item[count * ITEM + 1], item[count * ITEM + 2] = expert, first, rows
            first += rows
            count += 1
    for pair in range(pairs):
        expert = expert_of[pair]
        place[pair] = start[expert]
        start[expert] += 1
    for index in range(count, most_items(pairs, experts)):
        item[index * ITEM], item[index * ITEM + 1], item[index * ITEM + 2] = 0, 0, 0
    return awake


@kernel
def combine_row(
    outputs: int, stride: int, places: int, weights: int, chosen: int, shared: int, score: int, size: int, x: int
) -> None:  # fmt: skip
    """x += weights[0] y[0] + weights[1] y[1] + .., then + sigmoid(score) shared, all added in this order.

    Where `weights` or `score` are 0, there are no such factors. y[i] is the row of `outputs` at places[i]; that of
    places[0] is overwritten. Addresses: float32 outputs, `stride` floats a row, of which `size` count; int32 places and
    float32 weights [chosen]; float32 shared [size] and its score, where `shared` is not 0; float32 x.
    """
    place, weight, target = pointer_i32(places), pointer_f32(weights), pointer_f32(x)
    at: Any = np.int64(place[0])
    total = pointer_f32(outputs + at * stride * 4)
    if weights != 0:
        for i in range(size):
            total[i] *= weight[0]
    for rank in range(1, chosen):
        at = np.int64(place[rank])
        factor = weight[rank] if weights != 0 else np.float32(1)
        values = pointer_f32(outputs + at * stride * 4)
        for i in range(size):
            total[i] += factor * values[i]
    if shared != 0:
        share = np.float32(1)
        if score != 0:
            share = np.float32(1) / (np.float32(1) + exp(-pointer_f32(score)[0]))
        values = pointer_f32(shared)
        for i in range(size):
            total[i] += share * values[i]
    for i in range(size):
        target[i] += total[i]


@kernel
def _combine(
    outputs: int, places: int, weights: int, chosen: int, shared: int, scores: int, rows: int, size: int, x: int
) -> None:  # fmt: skip
    for row in range(rows):
        combine_row(
            outputs, size, places + row * chosen * 4, weights + row * chosen * 4 if weights != 0 else 0, chosen,
            shared + row * size * 4 if shared != 0 else 0, scores + row * 4 if scores != 0 else 0, size,
            x + row * size * 4,
        )  # fmt: skip


def combine(
    outputs: npt.NDArray[np.float32],
    places: npt.NDArray[np.int32],
    weights: npt.NDArray[np.float32] | None,
    x: npt.NDArray[np.float32],
    shared: npt.NDArray[np.float32] | None = None,
    scores: npt.NDArray[np.float32] | None = None,
) -> None:
    """Add to x [rows, size] what its experts say: `combine_row` of each row; all arrays are C-contiguous.

    float32 outputs [pairs, size], which are overwritten; places, weights [rows, chosen], None: of 1; of the shared
    expert float32 [rows, size] and scores [rows], None: it is added as it is.
    """
    rows, chosen = places.shape
    _combine(
        outputs.ctypes.data, places.ctypes.data, 0 if weights is None else weights.ctypes.data, chosen,
        0 if shared is None else shared.ctypes.data, 0 if scores is None else scores.ctypes.data,
        rows, x.shape[1], x.ctypes.data,
    )  # fmt: skip


def combine_reference(
    outputs: torch.Tensor,
    places: torch.Tensor,
    weights: torch.Tensor | None,
    x: torch.Tensor,
    shared: torch.Tensor | None = None,
    scores: torch.Tensor | None = None,
) -> None:
    """The same in torch."""
    said = outputs[places.long()]
    total = (said if weights is None else said * weights[:, :, None]).sum(1)
    if shared is not None:
        total += shared if scores is None else scores.sigmoid()[:, None] * shared
    x += total
