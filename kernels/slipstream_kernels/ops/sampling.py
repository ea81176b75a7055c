"""Sampling by the Gumbel-max trick with published noise: argmax over the candidates of processed logits plus noise.

A row's token is a function of its logits and parameters. Equal scores are decided for the lowest id.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slipstream_kernels.jit.compiler import Job, kernel
from slipstream_kernels.jit.intrinsics import address_f32, pointer_f32, pointer_i32
from slipstream_kernels.jit.threads import Team, claim, complete, finish, run_job
from slipstream_kernels.ops.bound_rows import bind_sampling, sampling_args, score_row
from slipstream_kernels.ops.candidates import top_candidates
from slipstream_kernels.ops.filters import filter_reference
from slipstream_kernels.ops.logits import (
    Float32,
    Int32,
    SamplingRows,
    argmax_row,
    is_untouched,
    process_reference,
    process_row,
)
from slipstream_kernels.ops.philox import gumbel, gumbel_reference

__all__ = ["SamplingRows", "argmax", "gumbel", "sample", "sample_reference", "top_candidates"]


@kernel
def _sample_row(a: Any, row: int, scratch: int) -> Any:
    logits = a.logits + row * a.stride
    if is_untouched(a, row):
        return argmax_row(logits, a.vocab_size)
    if pointer_f32(a.temperature)[row] > np.float32(0):
        count = score_row(a, row, scratch)
        if count == 0:
            return -1
        return pointer_i32(scratch + a.vocab_size * 4)[argmax_row(scratch + a.vocab_size * 8, count)]
    process_row(a, row, logits, a.vocab_size, scratch + a.vocab_size * 4, scratch)
    return argmax_row(scratch, a.vocab_size)


def _sample(args: int) -> None:
    a = sampling_args(args)
    scratch = a.scratch + claim(a.board, 0) * a.scratch_bytes
    row = claim(a.board, 1)
    while row < a.rows:
        pointer_i32(a.ids)[row] = _sample_row(a, row, scratch)
        finish(a.board, 1)
        row = claim(a.board, 1)
    complete(a.board, 1, a.rows)


_sample_job = Job(_sample)


def sample(logits: Float32, rows: SamplingRows, *, team: Team | None = None) -> Int32:
    """The token of each row: float32 logits [n, vocab] to int32 [n]. Logits are left as they are.

    In this order: bias, penalties, forbidden tokens; division by T; top-k, top-p, min-p; noise; argmax. T = 0 takes
    the argmax of the processed logits. Rows are shared among the threads of `team`. A row gets -1 whose processed
    logits hold a NaN or infinity, or minus infinity alone: nothing is decided by what is no number.
    Raises ValueError where the arrays do not fit.
    """
    if not len(logits):
        return np.empty(0, np.int32)
    bound = bind_sampling(logits, rows, 1 if team is None else team.threads)
    run_job(_sample_job, bound.address, team)
    return bound.ids


def argmax(logits: Float32) -> Int32:
    """Index of the largest of each row, as `argmax_row`: float32 [n, vocab] to int32 [n]."""
    ids = np.empty(len(logits), np.int32)
    _argmax(np.ascontiguousarray(logits), ids)
    return ids


@kernel
def _argmax(logits: Float32, ids: Int32) -> None:
    size = logits.shape[1]
    start = address_f32(logits)
    for row in range(len(logits)):
        ids[row] = argmax_row(start + row * size * 4, size)


def sample_reference(logits: Float32, rows: SamplingRows) -> Int32:
    """`sample` in numpy, by a full sort and float64 probabilities."""
    tokens = np.empty(len(logits), np.int32)
    for row in range(len(logits)):
        x = process_reference(logits[row], rows, row)
        if not -np.inf < x.max() < np.inf:
            tokens[row] = -1
            continue
        if rows.temperature[row] == 0:
            tokens[row] = int(np.argmax(x))
            continue
        kept = filter_reference(x, int(rows.top_k[row]), float(rows.top_p[row]), float(rows.min_p[row]))
        noise = gumbel_reference(int(rows.seed[row]), int(rows.choice[row]), int(rows.position[row]), kept)
        tokens[row] = kept[np.argmax(x[kept] + noise)]
    return tokens
