"""Cross-entropy against soft targets, fused with the layer that scores: no matrix [positions, vocabulary] is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_CHUNK_BYTES = {"cpu": 1 << 23, "cuda": 1 << 29}


def score_rows_plainly(
    scores: Tensor, wanted: Tensor, places: Tensor, row_weights: Tensor, losses: Tensor, best: Tensor, learn: bool
) -> Tensor:
    """Compare scores [n, entries] with the rows `places` int64 [n] of probabilities `wanted` [m, entries].

    Writes each one's loss (float32 [n]) and most likely entry (int64 [n]). Gives, where it is to be learnt from, the
    gradient of the losses weighed by `row_weights` (float32 [n]), in the type of the scores, whose memory it may take.
    """
    torch.argmax(scores, dim=-1, out=best)
    log_p = scores.log_softmax(dim=-1, dtype=torch.float32)
    chosen = wanted.index_select(0, places)
    torch.sum(log_p * chosen, dim=-1, out=losses)
    losses.neg_()
    return log_p.exp_().sub_(chosen).mul_(row_weights[:, None]).to(scores.dtype) if learn else scores[:0]


def _rows_on(device: torch.device) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool], Tensor]:
    """What `score_rows_plainly` is there."""
    if device.type != "cuda":
        return score_rows_plainly
    from slipstream_kernels.ops.gpu.score_rows import score_rows  # brings triton

    return score_rows


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, probabilities: Tensor, places: Tensor, row_weights: Tensor, learn: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        cast = weight.to(x.dtype)
        needs_x, needs_weight = (learn and needed for needed in ctx.needs_input_grad[:2])
        losses = torch.empty(len(x), device=x.device)
        best = torch.empty(len(x), dtype=torch.int64, device=x.device)
        x_grad = torch.empty_like(x) if needs_x else None
        weight_grad = torch.zeros_like(weight, dtype=torch.float32) if needs_weight else None
        learns = needs_x or needs_weight
        score_rows = _rows_on(x.device)
        chunk = max(1, _CHUNK_BYTES.get(x.device.type, 1 << 23) // (4 * len(weight)))
        for begin in range(0, len(x), chunk):
            part = slice(begin, begin + chunk)
            scores = x[part] @ cast.mT
            error = score_rows(scores, probabilities, places[part], row_weights[part], losses[part], best[part], learns)
            if x_grad is not None:
                torch.matmul(error, cast, out=x_grad[part])
            if weight_grad is not None:
                weight_grad += error.mT @ x[part]
        ctx.save_for_backward(x_grad, weight_grad)
        ctx.weight_dtype = weight.dtype
        ctx.mark_non_differentiable(losses, best)
        return (losses * row_weights).sum(), losses, best

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x_grad, weight_grad = ctx.saved_tensors
        return (
            None if x_grad is None else x_grad * grad.to(x_grad.dtype),
            None if weight_grad is None else (weight_grad * grad).to(ctx.weight_dtype),
            None,
            None,
            None,
            None,
        )


def soft_cross_entropy(
    x: Tensor, weight: Tensor, probabilities: Tensor, places: Tensor, row_weights: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scores `x` [n, hidden] by `weight` [entries, hidden] and compares with rows of probabilities [m, entries].

    places: int64 [n], the row of each position; row_weights: float32 [n]. Gives the weighted sum, to learn from, then
    each position's loss (float32 [n], nats) and most likely entry (int64 [n]). Products are taken in the type of `x`,
    all else in float32. Gradients are computed with the scores, so those are never kept.
    """
    fused: Any = _Fused
    total, losses, best = fused.apply(x, weight, probabilities, places, row_weights, torch.is_grad_enabled())
    return total, losses, best
