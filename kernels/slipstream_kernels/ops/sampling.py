"""Sampling by the Gumbel-max trick with published noise: argmax over the candidates of processed logits plus noise.

A row's token is a function of its logits and parameters. Equal scores are decided for the lowest id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream_kernels.intrinsics import (
    address_i32,
    address_rows_f32,
    address_u8,
    pointer_f32,
    pointer_i32,
    pointer_u32,
    pointer_u64,
    record_at,
)
from slipstream_kernels.jit import Job, kernel
from slipstream_kernels.ops.filters import BUCKETS, filter_reference, filter_row
from slipstream_kernels.ops.logits import (
    PARAMETERS,
    Float32,
    Int32,
    SamplingRows,
    argmax_row,
    bind_rows,
    is_untouched,
    process_reference,
    process_row,
)
from slipstream_kernels.ops.philox import gumbel_reference, gumbel_row
from slipstream_kernels.threads import COUNTER_BYTES, Team, claim, complete, finish, run_job

__all__ = ["SamplingRows", "argmax", "sample", "sample_reference"]

_FIELDS = ("board", "rows", "vocab_size", "logits", "stride", "scratch", "scratch_bytes", "ids", *PARAMETERS)
_ARGS = np.dtype([(name, np.int64) for name in _FIELDS])
sampling_args = record_at(_ARGS)
"""The record at `BoundRows.address`."""


@kernel
def score_row(a: Any, row: int, scratch: int) -> int:
    """Candidates and scores of a row with T > 0; returns the number of candidates.

    `scratch` holds, of vocab_size each: float32 processed logits, int32 candidates, float32 scores by candidate
    (noise added); then room for the filters.
    """
    size = a.vocab_size
    ids, scores, rest = scratch + size * 4, scratch + size * 8, scratch + (size * 12 + 63) // 64 * 64
    process_row(a, row, a.logits + row * a.stride, size, ids, scratch)
    peak = pointer_f32(scratch)[argmax_row(scratch, size)]
    top_k, top_p, min_p = pointer_i32(a.top_k)[row], pointer_f32(a.top_p)[row], pointer_f32(a.min_p)[row]
    count = filter_row(scratch, size, top_k, top_p, min_p, peak, ids, scores, rest)
    seed, choice = pointer_u64(a.seed)[row], np.int64(pointer_u32(a.choice)[row])
    position = np.int64(pointer_i32(a.position)[row])
    gumbel_row(seed, choice, position, ids, count, scores)
    x, tokens, score = pointer_f32(scratch), pointer_i32(ids), pointer_f32(scores)
    for i in range(count):
        score[i] += x[tokens[i]]
    return count


@kernel
def _sample_row(a: Any, row: int, scratch: int) -> int:
    logits = a.logits + row * a.stride
    if is_untouched(a, row):
        return argmax_row(logits, a.vocab_size)
    if pointer_f32(a.temperature)[row] > np.float32(0):
        count = score_row(a, row, scratch)
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


@kernel
def _bind(
    args, board, scratch, scratch_bytes, logits, ids, position, temperature, top_k, top_p, min_p, seed, choice,
    repetition, presence, frequency, history, prompt_seen, output_counts, path_offsets, path_tokens, bias_offsets,
    bias_ids, bias_values, mask_offsets, mask_ids,
):  # fmt: skip
    """Write a job's arguments; False unless the parameters fit the logits."""
    a = args[0]
    a.board, a.scratch, a.scratch_bytes = address_u8(board), address_u8(scratch), scratch_bytes
    a.rows, a.vocab_size = logits.shape
    a.logits, a.stride, a.ids = address_rows_f32(logits), logits.strides[0], address_i32(ids)
    return logits.strides[1] == 4 and bind_rows(
        a, a.rows, a.vocab_size, position, temperature, top_k, top_p, min_p, seed, choice, repetition, presence,
        frequency, history, prompt_seen, output_counts, path_offsets, path_tokens, bias_offsets, bias_ids, bias_values,
        mask_offsets, mask_ids,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class BoundRows:
    """Arguments of a kernel over sampled rows, and the memory that they point to."""

    args: npt.NDArray[Any]
    ids: Int32
    memory: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

    @property
    def address(self) -> int:
        """Address of the record."""
        return self.args.ctypes.data


def bind_sampling(logits: Float32, rows: SamplingRows, threads: int) -> BoundRows:
    """Arguments for `threads` threads. The caller keeps `logits` and `rows`. Raises ValueError if they do not fit."""
    per_thread = (20 * logits.shape[1] + 8 * BUCKETS + 191) // 64 * 64
    scratch, board = np.empty(threads * per_thread, np.uint8), np.zeros(2 * COUNTER_BYTES, np.uint8)
    bound = BoundRows(np.zeros(1, _ARGS), np.empty(len(logits), np.int32), (scratch, board))
    fits = _bind(
        bound.args, board, scratch, per_thread, logits, bound.ids, rows.position, rows.temperature, rows.top_k,
        rows.top_p, rows.min_p, rows.seed, rows.choice, rows.repetition, rows.presence, rows.frequency, rows.history,
        rows.prompt_seen, rows.output_counts, rows.path_offsets, rows.path_tokens, rows.bias_offsets, rows.bias_ids,
        rows.bias_values, rows.mask_offsets, rows.mask_ids,
    )  # fmt: skip
    if not fits:
        raise ValueError("sampling parameters do not fit the logits: a length, token id or history line is out of range")
    return bound


def sample(logits: Float32, rows: SamplingRows, *, team: Team | None = None) -> Int32:
    """The token of each row: float32 logits [n, vocab] to int32 [n], by the order of section "Sampling" in docs/protocol.

    Bias, penalties, forbidden tokens; division by T; top-k, top-p, min-p; noise; argmax. T = 0 takes the argmax of
    the processed logits. Rows are shared among the threads of `team`. Raises ValueError where the arrays do not fit.
    """
    bound = bind_sampling(logits, rows, 1 if team is None else team.threads)
    if len(logits):
        run_job(_sample_job, bound.address, team)
    return bound.ids


def argmax(logits: Float32) -> Int32:
    """Index of the largest of each row, the lowest of equals: float32 [n, vocab] to int32 [n]."""
    ids = np.empty(len(logits), np.int32)
    _argmax(np.ascontiguousarray(logits), ids)
    return ids


@kernel
def _argmax(logits: Float32, ids: Int32) -> None:
    size = logits.shape[1]
    start = address_rows_f32(logits)
    for row in range(len(logits)):
        ids[row] = argmax_row(start + row * size * 4, size)


def sample_reference(logits: Float32, rows: SamplingRows) -> Int32:
    """`sample` in numpy, by a full sort and float64 probabilities."""
    tokens = np.empty(len(logits), np.int32)
    for row in range(len(logits)):
        x = process_reference(logits[row], rows, row)
        if rows.temperature[row] == 0:
            tokens[row] = int(np.argmax(x))
            continue
        kept = filter_reference(x, int(rows.top_k[row]), float(rows.top_p[row]), float(rows.min_p[row]))
        noise = gumbel_reference(int(rows.seed[row]), int(rows.choice[row]), int(rows.position[row]), kept)
        tokens[row] = kept[np.argmax(x[kept] + noise)]
    return tokens
