"""Cross-entropy of scores against soft targets and its gradient, each row read twice and written once; on GPUs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Scores that a program holds at once."""


@triton.jit
def _score_rows(
    scores: tl.tensor,
    wanted: tl.tensor,
    places: tl.tensor,
    row_weights: tl.tensor,
    losses: tl.tensor,
    best: tl.tensor,
    entries: int,
    LEARN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    mine = scores + row * entries
    theirs = wanted + tl.load(places + row) * entries
    columns = tl.arange(0, BLOCK)
    greatest = tl.full((), float("-inf"), tl.float32)
    first = tl.full((), 0, tl.int32)
    total = tl.full((), 0.0, tl.float32)
    product = tl.full((), 0.0, tl.float32)
    mass = tl.full((), 0.0, tl.float32)
    for begin in range(0, entries, BLOCK):
        inside = begin + columns < entries
        score = tl.load(mine + begin + columns, mask=inside, other=-1e38).to(tl.float32)
        part = tl.load(theirs + begin + columns, mask=inside, other=0.0).to(tl.float32)
        here = tl.max(score, axis=0)
        first = tl.where(here > greatest, begin + tl.argmax(score, axis=0), first)
        above = tl.maximum(here, greatest)
        total = total * tl.exp(greatest - above) + tl.sum(tl.exp(score - above), axis=0)
        greatest = above
        product += tl.sum(part * score, axis=0)
        mass += tl.sum(part, axis=0)
    normaliser = greatest + tl.log(total)
    tl.store(losses + row, mass * normaliser - product)
    tl.store(best + row, first.to(tl.int64))
    if LEARN:
        weight = tl.load(row_weights + row)
        for begin in range(0, entries, BLOCK):
            inside = begin + columns < entries
            score = tl.load(mine + begin + columns, mask=inside, other=-1e38).to(tl.float32)
            part = tl.load(theirs + begin + columns, mask=inside, other=0.0).to(tl.float32)
            error = (tl.exp(score - normaliser) - part) * weight
            tl.store(mine + begin + columns, error.to(scores.dtype.element_ty), mask=inside)


def score_rows(
    scores: Tensor, wanted: Tensor, places: Tensor, row_weights: Tensor, losses: Tensor, best: Tensor, learn: bool
) -> Tensor:
    """Compare scores [n, entries] with the rows `places` int64 [n] of probabilities `wanted` [m, entries].

    Writes each one's loss (float32 [n], nats) and most likely entry (int64 [n]), the first of equals. Gives, where it
    is to be learnt from, the gradient of the losses weighed by `row_weights` (float32 [n]), in the scores' memory.
    """
    entries = scores.shape[1]
    assert scores.is_contiguous()
    assert wanted.is_contiguous()
    assert wanted.shape[1] == entries
    if len(scores):
        block = min(BLOCK, triton.next_power_of_2(entries))
        arguments = (scores, wanted, places, row_weights, losses, best, entries)
        _score_rows[(len(scores),)](*arguments, LEARN=learn, BLOCK=block, num_warps=8)
    return scores if learn else torch.empty_like(scores[:0])
