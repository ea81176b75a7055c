"""Logarithms of probabilities of raw logits: of chosen tokens and of the likeliest ones."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous

_BLOCK = 2048
_MINUS_INFINITY, _NO_ID = tl.constexpr(float("-inf")), tl.constexpr(2**31 - 1)


@triton.jit
def _block(source: tl.tensor, start: tl.tensor, vocab_size: int, BLOCK: tl.constexpr) -> tl.tensor:
    """Logits of tokens start, start + 1, ...; minus infinity for NaN and beyond the vocabulary."""
    ids = start + tl.arange(0, BLOCK)
    x = tl.load(source + ids, mask=ids < vocab_size, other=_MINUS_INFINITY)
    return tl.where(x == x, x, _MINUS_INFINITY)


@triton.jit
def _normaliser(source: tl.tensor, peak: tl.tensor, vocab_size: int, BLOCK: tl.constexpr) -> tl.tensor:
    """log of the sum of e^x, float64."""
    total = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, vocab_size, BLOCK):
        x = _block(source, start, vocab_size, BLOCK)
        total += tl.exp(x.to(tl.float64) - peak.to(tl.float64))
    return peak.to(tl.float64) + tl.log(tl.sum(total, 0))


@triton.jit
def _best_below(
    source: tl.tensor, start: tl.tensor, vocab_size: int, value: tl.tensor, token: tl.tensor, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Value and id of the block's token that comes first behind (value, token), likeliest and then lowest id first."""
    x = _block(source, start, vocab_size, BLOCK)
    ids = start + tl.arange(0, BLOCK)
    behind = (ids < vocab_size) & ((x < value) | ((x == value) & (ids > token)))
    best = tl.max(tl.where(behind, x, _MINUS_INFINITY), 0)
    return best, tl.min(tl.where(behind & (x == best), ids, _NO_ID), 0)


@triton.jit
def _logprobs(
    logits: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    wanted_rows: tl.tensor,
    chosen: tl.tensor,
    top: int,
    out_chosen: tl.tensor,
    out_ranks: tl.tensor,
    out_ids: tl.tensor,
    out_values: tl.tensor,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
) -> None:
    """One row a program. The first token behind those taken is kept by block, so that only one is read again."""
    release_next()
    wait_for_previous()
    index = tl.program_id(0)
    source = logits + tl.load(wanted_rows + index).to(tl.int64) * logits_stride
    token = tl.load(chosen + index)
    value = tl.load(source + token)

    places = tl.arange(0, BLOCKS)
    values = tl.full((BLOCKS,), _MINUS_INFINITY, tl.float32)
    ids = tl.full((BLOCKS,), _NO_ID, tl.int32)
    above = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, vocab_size, BLOCK):
        x = _block(source, start, vocab_size, BLOCK)
        above += ((x > value) | ((x == value) & (start + tl.arange(0, BLOCK) < token))).to(tl.int32)
        best, best_id = _best_below(source, start, vocab_size, float("inf"), -1, BLOCK)
        values = tl.where(places == start // BLOCK, best, values)
        ids = tl.where(places == start // BLOCK, best_id, ids)
    normaliser = _normaliser(source, tl.max(values, 0), vocab_size, BLOCK)
    tl.store(out_chosen + index, (value.to(tl.float64) - normaliser).to(tl.float32))
    tl.store(out_ranks + index, tl.sum(above, 0) + 1)

    for place in range(top):
        best = tl.max(values, 0)
        best_id = tl.min(tl.where(values == best, ids, _NO_ID), 0)
        tl.store(out_ids + index * top + place, best_id)
        tl.store(out_values + index * top + place, (best.to(tl.float64) - normaliser).to(tl.float32))
        block = best_id // BLOCK
        following, following_id = _best_below(source, block * BLOCK, vocab_size, best, best_id, BLOCK)
        values = tl.where(places == block, following, values)
        ids = tl.where(places == block, following_id, ids)


def logprobs(
    logits: torch.Tensor,
    wanted_rows: torch.Tensor,
    chosen: torch.Tensor,
    top: int,
    out_chosen: torch.Tensor,
    out_ranks: torch.Tensor,
    out_ids: torch.Tensor,
    out_values: torch.Tensor,
) -> None:
    """Natural logarithms from raw float32 logits [rows, vocab] (row stride free), with a float64 normaliser.

    Inputs, int32 [n]: wanted_rows, indices of rows of logits; chosen, a token of each. `top` is at most the vocabulary.
    Outputs: of the chosen tokens float32 [n] and their ranks int32 [n] from 1; of the `top` likeliest tokens, likeliest
    first and lowest id first of equals, ids int32 [n, top] and logarithms float32 [n, top].
    """
    vocab_size = logits.shape[1]
    blocks = triton.next_power_of_2(triton.cdiv(vocab_size, _BLOCK))
    inputs: tuple[Any, ...] = logits, logits.stride(0), vocab_size, wanted_rows, chosen, top
    outputs = out_chosen, out_ranks, out_ids, out_values
    launch(_logprobs, (len(wanted_rows),), *inputs, *outputs, warps=8, BLOCK=_BLOCK, BLOCKS=blocks)


def logprobs_reference(
    logits: torch.Tensor,
    wanted_rows: torch.Tensor,
    chosen: torch.Tensor,
    top: int,
    out_chosen: torch.Tensor,
    out_ranks: torch.Tensor,
    out_ids: torch.Tensor,
    out_values: torch.Tensor,
) -> None:
    """Twin of `logprobs`."""
    x = logits[wanted_rows.long()].double()
    tokens = chosen.long()[:, None]
    values = x.log_softmax(-1)
    order = x.sort(dim=-1, descending=True, stable=True).indices
    out_chosen.copy_(values.gather(1, tokens)[:, 0])
    out_ranks.copy_((order == tokens).int().argmax(-1) + 1)
    out_ids.copy_(order[:, :top])
    out_values.copy_(values.gather(1, order[:, :top]))
