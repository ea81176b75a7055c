"""Chains drafted one token at a time by the draft service's own head."""

from __future__ import annotations

from collections.abc import Callable

import torch

from draft_service.heads.eagle import EagleHead, HeadRows
from draft_service.heads.layer import RowSegment

Choose = Callable[[int, torch.Tensor], int]
"""The token that a chain goes on with, of its step and the logits [vocabulary] after it."""


def drafted_chain(
    head: EagleHead, tokens: torch.Tensor, states: torch.Tensor, row: int, steps: int, choose: Choose
) -> torch.Tensor:
    """Logits [steps, vocabulary] of a chain below token `row` + 1 of a text.

    tokens: int64 [n]. states: float32 [n, boundaries * hidden], the target's.
    """
    cache = head.new_cache()
    segment = RowSegment.committed(cache, row + 1)
    fused = head.fuse(states[: row + 1])
    state = head.forward(HeadRows(tokens[1 : row + 2], fused, torch.arange(row + 1), [segment]))[-1:]
    cache.length = row + 1
    logits = [head.logits(state)]
    for step in range(1, steps):
        token = torch.tensor([choose(step - 1, logits[-1][0])])
        segment = RowSegment(cache, row + step, torch.ones(1, row + step + 1, dtype=torch.bool))
        state = head.forward(HeadRows(token, state, torch.tensor([row + step]), [segment], depth=step))
        logits.append(head.logits(state))
    return torch.cat(logits)
