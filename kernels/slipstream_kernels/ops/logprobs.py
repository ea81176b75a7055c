"""Logarithms of probabilities: of chosen tokens, of the likeliest ones, and of a drafter's candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import address_i32, address_rows_f32, pointer_f32, pointer_i32
from slipstream_kernels.ops.elementary import exp, exp_total, log
from slipstream_kernels.ops.logits import Float32, Int32, argmax_row


@kernel
def log_normaliser(x: int, size: int) -> float:
    """log of the sum of e^x over float32 x [size], in float64; minus infinity counts as e^-87 of the largest.

    NaN where `argmax_row` has -1.
    """
    values = pointer_f32(x)
    likeliest = argmax_row(x, size)
    if likeliest < 0:
        return np.nan
    peak = values[likeliest]
    whole = size // 16 * 16
    total = exp_total(x, whole, peak) if whole else 0.0
    for i in range(whole, size):
        total += np.float64(exp(values[i] - peak))
    return np.float64(peak) + log(total)


@kernel
def best(x: int, count: int, k: int, out: int) -> int:
    """Indices of the k best of float32 x [count] into int32 out [k], best first, the lowest first of equals.

    Returns their number, at most k. x and out are addresses.
    """
    values, chosen = pointer_f32(x), pointer_i32(out)
    kept = 0
    for i in range(count):
        if kept == k and not values[i] > values[chosen[k - 1]]:
            continue
        place = min(kept, k - 1)
        while place > 0 and values[i] > values[chosen[place - 1]]:
            chosen[place] = chosen[place - 1]
            place -= 1
        chosen[place] = i
        kept = min(kept + 1, k)
    return kept


@kernel
def _logprobs(
    logits: Float32, chosen: Int32, chosen_out: Float32, ranks: Int32, ids: Int32, log_probs: Float32
) -> bool:
    rows, size = logits.shape
    top = ids.shape[1]
    if logits.strides[1] != 4 or len(chosen) != rows or top > size:
        return False
    start = address_rows_f32(logits)
    for row in range(rows):
        x = start + row * logits.strides[0]
        values = pointer_f32(x)
        token = chosen[row]
        if not 0 <= token < size:
            return False
        normaliser = log_normaliser(x, size)
        chosen_out[row] = np.float32(np.float64(values[token]) - normaliser)
        rank = 1
        for i in range(size):
            rank += values[i] > values[token] or (values[i] == values[token] and i < token)
        ranks[row] = rank
        if top:
            best(x, size, top, address_i32(ids) + row * top * 4)
        for i in range(top):
            log_probs[row, i] = np.float32(np.float64(values[ids[row, i]]) - normaliser)
    return True


def logprobs(logits: Float32, chosen: Int32, top: int) -> tuple[Float32, Int32, Int32, Float32]:
    """Log-probabilities from raw float32 logits [n, vocab], natural logarithm.

    Returns (of the chosen tokens float32 [n], their ranks int32 [n] from 1, ids of the `top` likeliest tokens int32
    [n, top], likeliest first and lowest id first of equals, their log-probabilities float32 [n, top]).
    Raises ValueError for ids outside the vocabulary.
    """
    n = len(logits)
    chosen_out, ranks = np.empty(n, np.float32), np.empty(n, np.int32)
    ids, log_probs = np.empty((n, top), np.int32), np.empty((n, top), np.float32)
    if not _logprobs(logits, chosen, chosen_out, ranks, ids, log_probs):
        raise ValueError(f"chosen {chosen.shape} or top {top} do not fit logits {logits.shape}")
    return chosen_out, ranks, ids, log_probs


def logprobs_reference(
    logits: npt.NDArray[Any], chosen: npt.NDArray[Any], top: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in torch and float64."""
    x = torch.as_tensor(logits).double()
    tokens = torch.as_tensor(chosen).long()[:, None]
    log_probs = x.log_softmax(-1)
    order = torch.sort(x, dim=-1, descending=True, stable=True).indices
    ranks = (order == tokens).int().argmax(-1) + 1
    return log_probs.gather(1, tokens)[:, 0], ranks, order[:, :top], log_probs.gather(1, order[:, :top])
