"""Which experts compute a row, and what each counts (arXiv 1701.06538; 2101.03961).

The experts of the highest scores are chosen, of equal scores those of lower ids. A row's choice depends on its own
scores alone: no expert is ever full.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32, pointer_i32
from slipstream_kernels.ops.elementary import exp

SHARE_OF_ALL, SHARE_OF_CHOSEN, SIGMOID = range(3)
"""Kinds of weights."""


def kind_of_weights(*, normalised: bool, sigmoid: bool) -> int:
    """Of `route_row`."""
    return SIGMOID if sigmoid else SHARE_OF_CHOSEN if normalised else SHARE_OF_ALL


@kernel
def _key(score: Any) -> Any:
    """NaN is the lowest score."""
    return score if score == score else np.float32(-np.inf)  # false for NaN alone


@kernel
def _weigh(scores: int, experts: int, chosen: int, kind: int, peak: Any, ids: int, weights: int) -> None:
    """The weights of chosen experts, see `route_row`; `peak` is the highest score."""
    score, target, weight = pointer_f32(scores), pointer_i32(ids), pointer_f32(weights)
    total, sound = np.float32(0), peak > -np.inf
    for expert in range(experts):
        sound = sound and score[expert] < np.inf
        if kind == SHARE_OF_ALL:
            total += exp(score[expert] - peak)
    for place in range(chosen):
        if kind == SIGMOID:
            weight[place] = np.float32(1) / (np.float32(1) + exp(-score[target[place]]))
        else:
            weight[place] = exp(score[target[place]] - peak)
        if kind == SHARE_OF_CHOSEN:
            total += weight[place]
    if kind == SIGMOID:
        total = np.float32(1)
    for place in range(chosen):
        weight[place] = weight[place] / total if sound else np.float32(np.nan)


@kernel
def route_row(scores: int, experts: int, chosen: int, kind: int, ids: int, weights: int) -> None:
    """Addresses of float32 scores [experts], int32 ids and float32 weights [chosen], which are written by rising id.

    A weight is exp(score - highest) over the sum of the same, which runs by rising id: of the chosen experts where
    `kind` is SHARE_OF_CHOSEN, of all where it is SHARE_OF_ALL. Where it is SIGMOID it is 1 / (1 + exp(-score)). With
    NaN or infinity among the scores, or nothing but its negative, all weights are NaN.
    """
    score, target = pointer_f32(scores), pointer_i32(ids)
    last = -1
    last_key: Any = np.float32(np.inf)
    peak: Any = np.float32(0)
    for place in range(chosen):
        best = -1
        best_key: Any = np.float32(0)
        for expert in range(experts):
            key = _key(score[expert])
            left = key < last_key or (key == last_key and expert > last)
            if left and (best < 0 or key > best_key):
                best, best_key = expert, key
        last, last_key = best, best_key
        if place == 0:
            peak = best_key
        at = place
        while at > 0 and target[at - 1] > best:
            target[at] = target[at - 1]
            at -= 1
        target[at] = best
    _weigh(scores, experts, chosen, kind, peak, ids, weights)


@kernel
def _route(scores: int, rows: int, stride: int, experts: int, chosen: int, kind: int, ids: int, w: int) -> None:
    for row in range(rows):
        at = row * chosen * 4
        route_row(scores + row * stride * 4, experts, chosen, kind, ids + at, w + at)


def route(
    scores: npt.NDArray[np.float32], experts: int, chosen: int, *, normalised: bool, sigmoid: bool = False
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The chosen experts by rising id, int32 [rows, chosen], and their weights, float32 of that shape.

    scores: float32 [rows, stride], of which the first `experts` columns count. sigmoid: a weight is that of its score.
    """
    scores = np.ascontiguousarray(scores)
    rows, stride = scores.shape
    if not 0 < chosen <= experts <= stride:
        raise ValueError(f"{chosen} of {experts} experts are chosen by {stride} scores")
    ids, weights = np.empty((rows, chosen), np.int32), np.empty((rows, chosen), np.float32)
    kind = kind_of_weights(normalised=normalised, sigmoid=sigmoid)
    _route(scores.ctypes.data, rows, stride, experts, chosen, kind, ids.ctypes.data, weights.ctypes.data)
    return ids, weights


def route_reference(
    scores: torch.Tensor, experts: int, chosen: int, *, normalised: bool, sigmoid: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch."""
    scores = scores[:, :experts]
    ranked = torch.nan_to_num(scores, -math.inf, math.inf, -math.inf).sort(dim=1, descending=True, stable=True)
    ids = ranked.indices[:, :chosen].sort(dim=1).values
    if sigmoid:
        sound = (scores < math.inf).all(1, keepdim=True)  # false for NaN too
        return ids.int(), torch.where(sound, scores.sigmoid().gather(1, ids), math.nan)
    weights = scores.softmax(1).gather(1, ids)
    return ids.int(), weights / weights.sum(1, keepdim=True) if normalised else weights
