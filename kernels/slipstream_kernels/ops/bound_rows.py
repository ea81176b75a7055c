"""Arguments of the kernels that sample: logits, parameters and working memory, bound into one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import (
    address_i32,
    address_rows_f32,
    address_u8,
    pointer_f32,
    pointer_i32,
    pointer_u32,
    pointer_u64,
    record_at,
)
from slipstream_kernels.jit.threads import COUNTER_BYTES
from slipstream_kernels.ops.filters import BUCKETS, filter_row
from slipstream_kernels.ops.logits import (
    PARAMETERS,
    Float32,
    Int32,
    SamplingRows,
    argmax_row,
    bind_rows,
    process_row,
    row_arrays,
)
from slipstream_kernels.ops.philox import gumbel_row

_FIELDS = ("board", "rows", "vocab_size", "logits", "stride", "scratch", "scratch_bytes", "ids")
_ARGS = np.dtype([(name, np.int64) for name in (*_FIELDS, *PARAMETERS)])
sampling_args = record_at(_ARGS)
"""The record at `BoundRows.address`."""


@dataclass(frozen=True, slots=True)
class BoundRows:
    """Arguments of a kernel over sampled rows, and the memory that they point to."""

    args: npt.NDArray[Any]
    ids: Int32
    memory: tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]

    @property
    def address(self) -> int:
        """Address of the record."""
        return int(self.args.ctypes.data)


def bind_sampling(logits: Float32, rows: SamplingRows, threads: int) -> BoundRows:
    """Arguments for `threads` threads. The caller keeps `logits` and `rows`. Raises ValueError if they do not fit."""
    per_thread = (20 * logits.shape[1] + 8 * BUCKETS + 191) // 64 * 64
    scratch, board = np.empty(threads * per_thread, np.uint8), np.zeros(2 * COUNTER_BYTES, np.uint8)
    bound = BoundRows(np.zeros(1, _ARGS), np.empty(len(logits), np.int32), (scratch, board))
    fits = _bind(bound.args, board, scratch, per_thread, logits, bound.ids, row_arrays(rows))
    if not fits:
        raise ValueError("sampling parameters do not fit the logits: a length, token id or history line is wrong")
    return bound


@kernel
def _bind(
    args: npt.NDArray[Any],
    board: npt.NDArray[np.uint8],
    scratch: npt.NDArray[np.uint8],
    scratch_bytes: int,
    logits: Float32,
    ids: Int32,
    parameters: SamplingRows,
) -> bool:
    a = args[0]
    a.board, a.scratch, a.scratch_bytes = address_u8(board), address_u8(scratch), scratch_bytes
    a.rows, a.vocab_size = logits.shape
    a.logits, a.stride, a.ids = address_rows_f32(logits), logits.strides[0], address_i32(ids)
    return logits.strides[1] == 4 and bind_rows(a, a.rows, a.vocab_size, parameters)


@kernel
def score_row(a: Any, row: int, scratch: int) -> int:
    """Candidates and scores of a row with T > 0; returns the number of candidates, 0 as `argmax_row` has -1.

    `scratch` holds, of vocab_size each: float32 processed logits, int32 candidates, float32 scores by candidate
    (noise added); then room for the filters.
    """
    size = a.vocab_size
    ids, scores, rest = scratch + size * 4, scratch + size * 8, scratch + (size * 12 + 63) // 64 * 64
    process_row(a, row, a.logits + row * a.stride, size, ids, scratch)
    likeliest = argmax_row(scratch, size)
    if likeliest < 0:
        return 0
    peak = pointer_f32(scratch)[likeliest]
    top_k, top_p, min_p = pointer_i32(a.top_k)[row], pointer_f32(a.top_p)[row], pointer_f32(a.min_p)[row]
    count = filter_row(scratch, size, top_k, top_p, min_p, peak, ids, scores, rest)
    seed, choice = pointer_u64(a.seed)[row], np.int64(pointer_u32(a.choice)[row])
    position = np.int64(pointer_i32(a.position)[row])
    gumbel_row(seed, choice, position, ids, count, scores)
    x, tokens, score = pointer_f32(scratch), pointer_i32(ids), pointer_f32(scores)
    for i in range(count):
        score[i] += x[tokens[i]]
    return count
