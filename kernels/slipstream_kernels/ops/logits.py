"""What is done to a row of logits before sampling: bias, penalties, forbidden tokens, temperature, in this order."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.compiler import kernel, tuple_type
from slipstream_kernels.jit.intrinsics import (
    address_f32,
    address_i32,
    address_u8,
    address_u32,
    address_u64,
    largest,
    pointer_f32,
    pointer_i32,
    pointer_u8,
)

_ZERO = np.float32(0)
Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each of n rows of logits is sampled. Arrays are C-contiguous."""

    position: Int32
    """[n], absolute position of the token that is decided: the row's own plus 1"""
    temperature: Float32
    """[n], 0 takes the likeliest token"""
    top_k: Int32
    """[n], 0 is off"""
    top_p: Float32
    """[n], 1 is off"""
    min_p: Float32
    """[n], 0 is off"""
    seed: npt.NDArray[np.uint64]
    """[n]"""
    choice: npt.NDArray[np.uint32]
    """[n], choice index of the request"""
    repetition: Float32
    """[n], 1 is off"""
    presence: Float32
    """[n], 0 is off"""
    frequency: Float32
    """[n], 0 is off"""
    history: Int32
    """[n], line of prompt_seen and output_counts; -1: no penalties"""
    prompt_seen: npt.NDArray[np.uint8]
    """[lines, vocab], 1 where the prompt has the token"""
    output_counts: Int32
    """[lines, vocab], how often the committed output has the token"""
    path_offsets: Int32
    """[n + 1], row i owns path_tokens[path_offsets[i] : path_offsets[i + 1]]"""
    path_tokens: Int32
    """drafted tokens from below the root to the row, itself included, not yet in output_counts"""
    bias_offsets: Int32
    """[n + 1], like path_offsets"""
    bias_ids: Int32
    bias_values: Float32
    mask_offsets: Int32
    """[n + 1], like path_offsets"""
    mask_ids: Int32
    """forbidden token ids"""

    def __len__(self) -> int:
        return len(self.position)

    def take(self, rows: Int32) -> SamplingRows:
        """These rows in this order; `rows` int32 [m]."""
        single = ("position", "temperature", "top_k", "top_p", "min_p", "seed", "choice", "repetition", "presence")
        columns = {name: getattr(self, name)[rows] for name in (*single, "frequency", "history")}
        path, bias, mask = (
            _runs(offsets, rows) for offsets in (self.path_offsets, self.bias_offsets, self.mask_offsets)
        )
        return replace(
            self,
            **columns,
            path_offsets=path[0],
            path_tokens=self.path_tokens[path[1]],
            bias_offsets=bias[0],
            bias_ids=self.bias_ids[bias[1]],
            bias_values=self.bias_values[bias[1]],
            mask_offsets=mask[0],
            mask_ids=self.mask_ids[mask[1]],
        )

    @classmethod
    def plain(
        cls,
        position: npt.ArrayLike,
        *,
        temperature: float = 0.0,
        seed: int = 0,
        choice: int = 0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> SamplingRows:
        """Rows without bias, penalties and forbidden tokens, all with the same parameters."""
        positions = np.ascontiguousarray(position, np.int32)
        n = len(positions)
        none, offsets = np.zeros(0, np.int32), np.zeros(n + 1, np.int32)
        return cls(
            position=positions,
            temperature=np.full(n, temperature, np.float32),
            top_k=np.full(n, top_k, np.int32),
            top_p=np.full(n, top_p, np.float32),
            min_p=np.full(n, min_p, np.float32),
            seed=np.full(n, seed, np.uint64),
            choice=np.full(n, choice, np.uint32),
            repetition=np.ones(n, np.float32),
            presence=np.zeros(n, np.float32),
            frequency=np.zeros(n, np.float32),
            history=np.full(n, -1, np.int32),
            prompt_seen=np.zeros((0, 0), np.uint8),
            output_counts=np.zeros((0, 0), np.int32),
            path_offsets=offsets,
            path_tokens=none,
            bias_offsets=offsets,
            bias_ids=none,
            bias_values=np.zeros(0, np.float32),
            mask_offsets=offsets,
            mask_ids=none,
        )


def _runs(offsets: Int32, rows: Int32) -> tuple[Int32, Int32]:
    """Offsets [m + 1] of the runs of these rows, laid out one after the other, and where their elements are now."""
    ends = np.concatenate([np.zeros(1, np.int32), np.cumsum(offsets[rows + 1] - offsets[rows], dtype=np.int32)])
    parts = [np.arange(offsets[row], offsets[row + 1], dtype=np.int32) for row in rows]
    return ends, np.concatenate(parts) if parts else np.zeros(0, np.int32)


PARAMETERS = (
    "position", "temperature", "top_k", "top_p", "min_p", "seed", "choice", "repetition", "presence", "frequency",
    "history", "prompt_seen", "output_counts", "history_stride", "path_offsets", "path_tokens", "bias_offsets",
    "bias_ids", "bias_values", "mask_offsets", "mask_ids",
)  # fmt: skip
"""Fields of a job's record that hold the addresses of the arrays of `SamplingRows`, and its row length."""


RowArrays: Any = tuple_type(SamplingRows, "RowArrays", __name__)
"""The arrays of `SamplingRows` as kernels take them."""
_arrays_of = attrgetter(*[field.name for field in fields(SamplingRows)])


def row_arrays(rows: SamplingRows) -> SamplingRows:
    """The same fields in a tuple, which a kernel can be called with."""
    return cast(SamplingRows, RowArrays._make(_arrays_of(rows)))


@kernel
def bind_rows(a: Any, rows: int, vocab_size: int, p: SamplingRows) -> bool:
    """Write the addresses of `row_arrays` into the record `a`; False unless they fit `rows` and the vocabulary."""
    a.position, a.temperature, a.top_k = address_i32(p.position), address_f32(p.temperature), address_i32(p.top_k)
    a.top_p, a.min_p, a.seed = address_f32(p.top_p), address_f32(p.min_p), address_u64(p.seed)
    a.choice, a.repetition, a.presence = address_u32(p.choice), address_f32(p.repetition), address_f32(p.presence)
    a.frequency, a.history, a.prompt_seen = address_f32(p.frequency), address_i32(p.history), address_u8(p.prompt_seen)
    a.output_counts, a.history_stride = address_i32(p.output_counts), p.prompt_seen.shape[1]
    a.path_offsets, a.path_tokens = address_i32(p.path_offsets), address_i32(p.path_tokens)
    a.bias_offsets, a.bias_ids = address_i32(p.bias_offsets), address_i32(p.bias_ids)
    a.bias_values, a.mask_offsets, a.mask_ids = (
        address_f32(p.bias_values),
        address_i32(p.mask_offsets),
        address_i32(p.mask_ids),
    )
    return (
        _have_rows(p, rows)
        and _have_history(p, vocab_size)
        and len(p.bias_ids) == len(p.bias_values)
        and _fits(p.path_offsets, p.path_tokens, rows, vocab_size)
        and _fits(p.bias_offsets, p.bias_ids, rows, vocab_size)
        and _fits(p.mask_offsets, p.mask_ids, rows, vocab_size)
    )


@kernel
def _have_rows(p: SamplingRows, rows: int) -> bool:
    filters = (len(p.top_k), len(p.top_p), len(p.min_p), len(p.repetition), len(p.presence), len(p.frequency))
    for length in filters:
        if length != rows:
            return False
    others = (len(p.position), len(p.temperature), len(p.seed), len(p.choice), len(p.history))
    for length in others:  # noqa: SIM110 (kernels have no generators)
        if length != rows:
            return False
    return True


@kernel
def _have_history(p: SamplingRows, vocab_size: int) -> bool:
    lines, width = p.prompt_seen.shape
    if p.output_counts.shape != p.prompt_seen.shape:
        return False
    for line in p.history:  # noqa: SIM110 (kernels have no generators)
        if line >= lines or (line >= 0 and width < vocab_size):
            return False
    return True


@kernel
def _fits(offsets: Int32, ids: Int32, rows: int, vocab_size: int) -> bool:
    if len(offsets) != rows + 1 or offsets[0] < 0 or offsets[rows] > len(ids):
        return False
    for row in range(rows):
        if offsets[row] > offsets[row + 1]:
            return False
    for token in ids:  # noqa: SIM110 (kernels have no generators)
        if not 0 <= token < vocab_size:
            return False
    return True


@kernel
def is_untouched(a: Any, row: int) -> bool:
    """Whether `process_row` would copy the row as it is."""
    bias, mask = pointer_i32(a.bias_offsets), pointer_i32(a.mask_offsets)
    return bool(
        pointer_f32(a.temperature)[row] == _ZERO
        and pointer_i32(a.history)[row] < 0
        and bias[row] == bias[row + 1]
        and mask[row] == mask[row + 1]
    )


@kernel
def process_row(a: Any, row: int, logits: int, vocab_size: int, counts: int, out: int) -> None:
    """Processed logits of a row: addresses of float32 logits and out, int32 scratch `counts`, all [vocab_size]."""
    source, target = pointer_f32(logits), pointer_f32(out)
    for i in range(vocab_size):
        target[i] = source[i]
    offsets, ids, values = pointer_i32(a.bias_offsets), pointer_i32(a.bias_ids), pointer_f32(a.bias_values)
    for i in range(offsets[row], offsets[row + 1]):
        target[ids[i]] += values[i]
    if pointer_i32(a.history)[row] >= 0:
        _penalise(a, row, vocab_size, counts, out)
    offsets, ids = pointer_i32(a.mask_offsets), pointer_i32(a.mask_ids)
    for i in range(offsets[row], offsets[row + 1]):
        target[ids[i]] = -np.inf
    temperature = pointer_f32(a.temperature)[row]
    if temperature > _ZERO:
        for i in range(vocab_size):
            target[i] = target[i] / temperature


@kernel
def _penalise(a: Any, row: int, vocab_size: int, counts: int, out: int) -> None:
    """Repetition over prompt and output, then frequency and presence over the output, the row's path included."""
    start = pointer_i32(a.history)[row] * a.history_stride
    seen, committed = pointer_u8(a.prompt_seen + start), pointer_i32(a.output_counts + start * 4)
    number, target = pointer_i32(counts), pointer_f32(out)
    for i in range(vocab_size):
        number[i] = committed[i]
    offsets, path = pointer_i32(a.path_offsets), pointer_i32(a.path_tokens)
    for i in range(offsets[row], offsets[row + 1]):
        number[path[i]] += 1
    repetition = pointer_f32(a.repetition)[row]
    presence, frequency = pointer_f32(a.presence)[row], pointer_f32(a.frequency)[row]
    for i in range(vocab_size):
        x = target[i]
        if number[i] > 0 or seen[i] > 0:
            x = x / repetition if x > _ZERO else x * repetition
        if number[i] > 0:
            x = x - frequency * np.float32(number[i]) - presence
        target[i] = x


@kernel
def argmax_row(x: int, size: int) -> int:
    """Index of the largest of float32 x [size], the lowest of equals.

    -1 where nothing can be chosen: there is a NaN or infinity among them, or minus infinity alone.
    """
    values = pointer_f32(x)
    whole = size // 16 * 16
    peak = largest(x, whole) if whole else np.float32(-np.inf)
    for i in range(whole, size):
        if not values[i] <= peak:
            peak = values[i] if values[i] < np.inf else np.float32(np.inf)
    if not -np.inf < peak < np.inf:
        return -1
    for i in range(size):
        if values[i] == peak:
            return i
    return -1


def process_reference(logits: Float32, rows: SamplingRows, row: int) -> Float32:
    """`process_row` in numpy: float32 logits [vocab] to float32 [vocab]."""
    x = logits.astype(np.float32).copy()
    bias = slice(rows.bias_offsets[row], rows.bias_offsets[row + 1])
    for token, value in zip(rows.bias_ids[bias], rows.bias_values[bias], strict=True):
        x[token] += value
    line = rows.history[row]
    if line >= 0:
        counts = rows.output_counts[line, : len(x)].copy()
        np.add.at(counts, rows.path_tokens[rows.path_offsets[row] : rows.path_offsets[row + 1]], 1)
        repeated = (counts > 0) | (rows.prompt_seen[line, : len(x)] > 0)
        repetition = rows.repetition[row]
        x = np.where(repeated, np.where(x > 0, x / repetition, x * repetition), x)
        x = np.where(counts > 0, x - rows.frequency[row] * counts.astype(np.float32) - rows.presence[row], x)
    x[rows.mask_ids[rows.mask_offsets[row] : rows.mask_offsets[row + 1]]] = -np.inf
    temperature = rows.temperature[row]
    return x / temperature if temperature > 0 else x
