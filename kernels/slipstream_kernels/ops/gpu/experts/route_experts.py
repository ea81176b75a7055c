"""Which experts compute a row, and what each counts: see `slipstream_kernels.ops.experts.routing`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton import next_power_of_2

from slipstream_kernels.ops.experts.routing import route_reference
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.preference_keys import NOTHING, preference_key

_LEAST = tl.constexpr(-1e38)


@triton.jit
def _route(
    scores: tl.tensor,
    slots: tl.tensor,
    ids: tl.tensor,
    weights: tl.tensor,
    experts: int,
    stride: int,
    CHOSEN: tl.constexpr,
    NORMALISED: tl.constexpr,
    SIGMOID: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    release_next()
    wait_for_previous()
    row = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK)
    inside = expert < experts
    score = tl.load(scores + row * stride + expert, mask=inside, other=float("-inf"))
    sound = score == score  # false for NaN alone
    ordered = tl.where(sound, score, float("-inf"))
    keys = preference_key(inside, ordered, expert)
    chosen = expert < 0
    for _ in range(CHOSEN):
        best = tl.max(tl.where(chosen, NOTHING, keys), 0)
        chosen = chosen | (keys == best)
    peak = tl.maximum(tl.max(ordered, 0), _LEAST)  # finite, so that no lane is a difference of infinities
    weight = tl.where(inside, tl.exp(score - peak), 0.0)
    counted = tl.where(chosen, weight, 0.0) if NORMALISED else weight
    total = tl.sum(counted, 0)
    total = tl.where(tl.sum(tl.where(sound, 0, 1), 0) > 0, float("nan"), total)
    share = weight / total
    if SIGMOID:
        share = tl.where(total == total, 1.0 / (1.0 + tl.exp(-score)), float("nan"))
    if SLOTS:
        padding = tl.load(slots + row) < 0
        expert = tl.where(padding, experts, expert)
        share = tl.where(padding, 0.0, share)
    place = row * CHOSEN + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(ids + place, expert, mask=chosen)
    tl.store(weights + place, share, mask=chosen)


def route_experts(
    scores: torch.Tensor,
    slots: torch.Tensor | None,
    ids: torch.Tensor,
    weights: torch.Tensor,
    *,
    experts: int,
    normalised: bool,
    sigmoid: bool = False,
) -> None:
    """The experts of the highest scores, of equal scores those of lower ids, by rising id, and what each counts.

    float32 scores [rows, columns], of which the first `experts` count; int32 ids and float32 weights [rows, chosen],
    contiguous. Weights are the softmax of the scores: of the chosen ones where `normalised`, else of all; or, where
    `sigmoid`, that of each score. With a NaN among the scores all are NaN. int32 slots [rows]: a row whose slot is -1
    is padding, which wakes no expert: its ids are `experts`, and its weights 0; None: there is no padding.
    """
    rows, chosen = ids.shape
    assert scores.stride(1) == 1
    assert chosen <= experts <= scores.shape[1]
    launch(
        _route,
        (rows,),
        scores,
        ids if slots is None else slots,
        ids,
        weights,
        experts,
        scores.stride(0),
        CHOSEN=chosen,
        NORMALISED=normalised,
        SIGMOID=sigmoid,
        SLOTS=slots is not None,
        BLOCK=next_power_of_2(experts),
        warps=1,
    )


def route_experts_reference(
    scores: torch.Tensor,
    slots: torch.Tensor | None,
    ids: torch.Tensor,
    weights: torch.Tensor,
    *,
    experts: int,
    normalised: bool,
    sigmoid: bool = False,
) -> None:
    """The same in torch."""
    found, shares = route_reference(scores, experts, ids.shape[1], normalised=normalised, sigmoid=sigmoid)
    ids.copy_(found)
    weights.copy_(shares)
    if slots is not None:
        ids[slots < 0], weights[slots < 0] = experts, 0
