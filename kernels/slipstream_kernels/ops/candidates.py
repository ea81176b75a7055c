"""What a proposer drafts from a row of its own logits: the best tokens, under the target's noise where T > 0.

With the noise of the request, the best by draft_logits / T + g is the token most likely to be the target's own
sample ("Coupling without communication and drafter-invariant speculative decoding", arXiv 2408.07978).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import address_i32, address_rows_f32, pointer_f32, pointer_i32
from slipstream_kernels.ops.bound_rows import bind_sampling, sampling_args, score_row
from slipstream_kernels.ops.logits import Float32, Int32, SamplingRows, process_row
from slipstream_kernels.ops.logprobs import best, log_normaliser


@kernel
def _plain(logits: Float32, ids: Int32, log_probs: Float32) -> None:
    rows, size = logits.shape
    k = ids.shape[1]
    for row in range(rows):
        x = address_rows_f32(logits) + row * logits.strides[0]
        normaliser = log_normaliser(x, size)
        kept = best(x, size, k, address_i32(ids) + row * k * 4) if np.isfinite(normaliser) else 0
        for i in range(k):
            value = np.float64(pointer_f32(x)[ids[row, i]]) - normaliser if i < kept else -np.inf
            log_probs[row, i] = np.float32(value)
            ids[row, i] = ids[row, i] if i < kept else -1


@kernel
def _noisy_row(a: Any, row: int, scratch: int, ids: Int32, log_probs: Float32) -> None:
    """One row with parameters; see `score_row` for the layout of `scratch`."""
    size, k = a.vocab_size, ids.shape[1]
    x, tokens, scores = pointer_f32(scratch), pointer_i32(scratch + size * 4), scratch + size * 8
    chosen = address_i32(ids) + row * k * 4
    if pointer_f32(a.temperature)[row] > np.float32(0):
        kept = best(scores, score_row(a, row, scratch), k, chosen)
        for i in range(kept):
            ids[row, i] = tokens[ids[row, i]]
    else:
        process_row(a, row, a.logits + row * a.stride, size, scratch + size * 4, scratch)
        kept = best(scratch, size, k, chosen)
    normaliser = log_normaliser(scratch, size)
    kept = kept if np.isfinite(normaliser) else 0
    for i in range(k):
        log_probs[row, i] = np.float32(np.float64(x[ids[row, i]]) - normaliser) if i < kept else -np.inf
        ids[row, i] = ids[row, i] if i < kept else -1


@kernel
def _noisy(args: int, ids: Int32, log_probs: Float32) -> None:
    a = sampling_args(args)
    for row in range(a.rows):
        _noisy_row(a, row, a.scratch, ids, log_probs)


def top_candidates(logits: Float32, k: int, rows: SamplingRows | None = None) -> tuple[Int32, Float32]:
    """The k best tokens of each row of float32 logits [n, vocab] and their log-probabilities.

    Without `rows` the best by logits. With them logits are processed as in `sample`, and where T > 0 the best are
    those by processed logit plus noise among the filters' candidates. Returns ids int32 [n, k], best first and lowest
    id first of equals, and the log-probabilities float32 [n, k] of the (processed, unfiltered) draft distribution.
    Where fewer than k tokens pass the filters, the places left have id -1 and minus infinity. So has a whole row that
    `sample` would give -1.
    """
    n, vocab_size = logits.shape
    if not 0 < k <= vocab_size or logits.strides[1] != logits.itemsize:
        raise ValueError(f"k is {k}, the vocabulary has {vocab_size}, strides are {logits.strides}")
    ids, log_probs = np.empty((n, k), np.int32), np.empty((n, k), np.float32)
    if rows is None:
        _plain(logits, ids, log_probs)
    else:
        bound = bind_sampling(logits, rows, 1)
        _noisy(bound.address, ids, log_probs)
    return ids, log_probs
