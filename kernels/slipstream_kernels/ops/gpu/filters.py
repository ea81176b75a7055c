"""Top-k, top-p and min-p: which tokens of a row may be sampled, as a threshold on its processed logits.

A token is kept if its logit is above the threshold, or equal to it with an id of at most `last`. Logits are compared
as uint32 keys of the same order, in which -0 and 0 are one. Top-k and top-p keep the shortest prefix, in the order of
logit descending and id ascending, whose mass reaches a target. A mass is 1, or e^(x - peak) in units of 2^-43: whole
numbers, whose sums depend on no order. The threshold is found by histograms of key intervals, each of them inside one
bin of that before it.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu import sampling_table as table
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.logits import float_field, process_row_reference, processed, row_arguments
from slipstream_kernels.ops.gpu.masked_rows import (
    chosen_row,
    chosen_rows_reference,
    is_sampled,
    mask_row,
    masked_arguments,
)
from slipstream_kernels.ops.gpu.sampling_table import SamplingTensors
from slipstream_kernels.ops.gpu.sort_keys import (
    LARGEST_KEY,
    MINUS_INFINITY_KEY,
    as_int32,
    sort_key,
    sort_key_reference,
    value_of,
)

BINS = 2048
"""Bins of a row's histogram: three of them tell 2^32 keys apart."""
MAX_VOCAB = 2**20
"""So many masses have a sum below 2^63."""

_FIELDS, _TEMPERATURE = tl.constexpr(table.FIELDS), tl.constexpr(table.TEMPERATURE)
_TOP_K, _TOP_P, _MIN_P = tl.constexpr(table.TOP_K), tl.constexpr(table.TOP_P), tl.constexpr(table.MIN_P)
_MASS = 2.0**43
_UNITS = tl.constexpr(_MASS)
_LOWEST, _HIGHEST = tl.constexpr(MINUS_INFINITY_KEY), tl.constexpr(LARGEST_KEY)
_LOWEST_EXPONENT, _LOG2_E = tl.constexpr(-87.0), tl.constexpr(math.log2(math.e))
_ROUND = tl.constexpr(1.5 * 2**23)
_LN2_HIGH, _LN2_LOW = tl.constexpr(0.693359375), tl.constexpr(-2.12194440054690583e-4)


@triton.jit
def mass_of(x: tl.tensor, peak: tl.tensor) -> tl.tensor:
    """int64 mass of float32 x: the exponential of `ops/elementary.py`, cut to a whole number of units."""
    x = tl.where(x == peak, 0.0, tl.maximum(x - peak, _LOWEST_EXPONENT))
    n = (x * _LOG2_E + _ROUND) - _ROUND
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    series = 1.0 / 720.0 + r * (1.0 / 5040.0)
    series = 1.0 / 24.0 + r * (1.0 / 120.0 + r * series)
    series = 1.0 / 2.0 + r * (1.0 / 6.0 + r * series)
    scale = ((n.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return ((1.0 + (r + (r * r) * series)) * scale * _UNITS).to(tl.int64)


@triton.jit
def is_filtered(parameters: tl.tensor, line: tl.tensor) -> tl.tensor:
    """Whether a request samples with a filter."""
    top_k = tl.load(parameters + line.to(tl.int64) * _FIELDS + _TOP_K)
    others = (float_field(parameters, line, _TOP_P) < 1) | (float_field(parameters, line, _MIN_P) > 0)
    return (float_field(parameters, line, _TEMPERATURE) > 0) & ((top_k > 0) | others)


@triton.jit
def is_kept(x: tl.tensor, ids: tl.tensor, thresholds: tl.tensor, index: tl.tensor) -> tl.tensor:
    """Whether tokens `ids` with processed logits x pass the filters of a row of logits."""
    threshold = tl.load(thresholds + index * 2).to(tl.uint32, bitcast=True)
    last = tl.load(thresholds + index * 2 + 1)
    keys = sort_key(x)
    return (keys > threshold) | ((keys == threshold) & (ids <= last))


@triton.jit
def _extent(request_row: tl.tuple, BLOCK: tl.constexpr, MASKED: tl.constexpr) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Lowest and highest key of the candidates, which are the tokens above minus infinity, and their number."""
    count = tl.zeros((BLOCK,), tl.int32)
    low = tl.full((BLOCK,), _HIGHEST, tl.uint32)
    high = tl.zeros((BLOCK,), tl.uint32)
    for start in range(0, request_row[1], BLOCK):
        keys = sort_key(processed(request_row, start, BLOCK, MASKED))
        candidate = keys > _LOWEST
        count += candidate.to(tl.int32)
        low = tl.minimum(low, tl.where(candidate, keys, _HIGHEST))
        high = tl.maximum(high, keys)
    return tl.min(low, 0), tl.max(high, 0), tl.sum(count, 0)


@triton.jit
def _fill(
    request_row: tl.tuple,
    histogram: tl.tensor,
    interval: tl.tuple,
    kept: tl.tuple,
    by_weight: tl.tensor,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Masses of kept tokens with keys in [low, high], by (high - key) >> shift: int64 [BINS]."""
    low, high, shift = interval
    threshold, last, peak = kept
    bins = histogram + tl.arange(0, BINS)
    tl.debug_barrier()
    tl.store(bins, tl.zeros((BINS,), tl.int64))
    tl.debug_barrier()
    for start in range(0, request_row[1], BLOCK):
        x = processed(request_row, start, BLOCK, MASKED)
        keys = sort_key(x)
        member = (keys >= low) & (keys <= high) & ((keys > threshold) | (start + tl.arange(0, BLOCK) <= last))
        mass = tl.where(by_weight, mass_of(x, peak), 1)
        tl.atomic_add(histogram + ((high - keys) >> shift), mass, mask=member & (mass > 0), sem="relaxed")
    tl.debug_barrier()
    return tl.load(bins, cache_modifier=".cg")  # sums lie in the second-level cache


@triton.jit
def _nth_equal(
    request_row: tl.tuple, key: tl.tensor, number: tl.tensor, BLOCK: tl.constexpr, MASKED: tl.constexpr
) -> tl.tensor:
    """Id of the `number`-th token, from 1, whose key is `key`."""
    seen = number * 0
    found = tl.full((BLOCK,), -1, tl.int32)
    for start in range(0, request_row[1], BLOCK):
        equal = sort_key(processed(request_row, start, BLOCK, MASKED)) == key
        rank = seen + tl.cumsum(equal.to(tl.int32), 0)
        found = tl.where(equal & (rank == number), start + tl.arange(0, BLOCK), found)
        seen += tl.sum(equal.to(tl.int32), 0)
    return tl.max(found, 0)


@triton.jit
def _keep_prefix(
    request_row: tl.tuple,
    histogram: tl.tensor,
    kept: tl.tuple,
    highest: tl.tensor,
    count: tl.tensor,
    share: tl.tensor,
    by_weight: tl.tensor,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Threshold and last id of the shortest prefix of kept tokens.

    Its mass is `count`, or a `share` of all their weight. `histogram` is scratch.
    """
    threshold, last, peak = kept
    low, high = threshold, highest
    bins = tl.arange(0, BINS)
    target = tl.where(by_weight, 0, count).to(tl.int64)
    before = target * 0
    at_edge = target * 0
    searching = True
    while searching:
        shift = (high - low) * 0
        while ((high - low) >> shift) >= BINS:
            shift += 1
        masses = _fill(request_row, histogram, (low, high, shift), kept, by_weight, BLOCK, BINS, MASKED)
        if target == 0:
            target = tl.maximum(tl.ceil(share.to(tl.float64) * tl.sum(masses, 0).to(tl.float64)).to(tl.int64), 1)
        sums = before + tl.cumsum(masses, 0)
        edge = tl.sum((sums < target).to(tl.int32), 0)
        before = tl.maximum(before, tl.max(tl.where(sums < target, sums, 0), 0))
        at_edge = tl.sum(tl.where(bins == edge, masses, 0), 0)
        high -= edge.to(tl.uint32) << shift
        low = tl.maximum(low, high - ((1 << shift) - 1))
        searching = low < high
    mass = tl.where(by_weight, mass_of(value_of(high), peak), 1)
    needed = (target - before + mass - 1) // mass
    if needed * mass < at_edge:
        last = _nth_equal(request_row, high, needed.to(tl.int32), BLOCK, MASKED)
    elif high > threshold:
        last = request_row[1] - 1
    return high, last


@triton.jit
def _filter_rows(
    logits: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    logit_rows: tl.tensor,
    positions: tl.tensor,
    lines: tl.tensor,
    paths: tl.tensor,
    depths: tl.tensor,
    resolved_ids: tl.tensor,
    parameters: tl.tensor,
    token_flags: tl.tensor,
    output_counts: tl.tensor,
    bias: tl.tensor,
    histograms: tl.tensor,
    thresholds: tl.tensor,
    chosen: tl.tensor,
    masks: tl.tensor,
    BLOCK: tl.constexpr,
    BINS: tl.constexpr,
    MASKED: tl.constexpr,
) -> None:
    """One row of logits a program; rows without a filter are left alone."""
    release_next()
    wait_for_previous()
    index = tl.program_id(0)
    place, row = chosen_row(index, logit_rows, chosen, MASKED)
    line = tl.load(lines + tl.maximum(row, 0))
    if (row >= 0) & is_filtered(parameters, line) & is_sampled(parameters, line, MASKED):
        request_row = (
            logits + place.to(tl.int64) * logits_stride, vocab_size, row, line, tl.load(positions + row) + 1,
            paths, depths, resolved_ids, parameters, token_flags, output_counts, bias,
            mask_row(index, masks, vocab_size),
        )  # fmt: skip
        histogram = histograms + index.to(tl.int64) * BINS
        top_k = tl.load(parameters + line.to(tl.int64) * _FIELDS + _TOP_K)
        top_p = float_field(parameters, line, _TOP_P)
        min_p = float_field(parameters, line, _MIN_P)
        threshold, highest, candidates = _extent(request_row, BLOCK, MASKED)
        last = (index * 0) + vocab_size - 1
        if candidates > 0:
            peak = value_of(highest)
            for stage in range(2):
                by_weight = stage == 1
                if ((stage == 0) & (top_k > 0) & (top_k < candidates)) | (by_weight & (top_p < 1)):
                    threshold, last = _keep_prefix(
                        request_row, histogram, (threshold, last, peak), highest, top_k, top_p, by_weight,
                        BLOCK, BINS, MASKED,
                    )  # fmt: skip
            if min_p > 0:
                least = sort_key((peak.to(tl.float64) + tl.log(min_p.to(tl.float64))).to(tl.float32))
                last = tl.where(least > threshold, vocab_size - 1, last)
                threshold = tl.maximum(least, threshold)
        tl.store(thresholds + index * 2, threshold.to(tl.int32, bitcast=True))
        tl.store(thresholds + index * 2 + 1, last)


def filter_rows(
    logits: torch.Tensor,
    logit_rows: torch.Tensor,
    positions: torch.Tensor,
    lines: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    resolved_ids: torch.Tensor,
    tensors: SamplingTensors,
    histograms: torch.Tensor,
    thresholds: torch.Tensor,
    chosen: torch.Tensor | None = None,
    masks: torch.Tensor | None = None,
) -> None:
    """Thresholds of rows that sample with a filter: int32 [n, 2], bits of the key and last id; other rows' stay.

    Inputs as for `process`; `histograms` is scratch, int64 [n, BINS]. `chosen` and `masks` are as in `sample`: n rows
    alone then. Raises ValueError for a vocabulary above MAX_VOCAB.
    """
    if logits.shape[1] > MAX_VOCAB:
        raise ValueError(f"the vocabulary has {logits.shape[1]} tokens, filters take {MAX_VOCAB}")
    launch(
        _filter_rows,
        (len(logits if chosen is None else chosen),),
        *row_arguments(logits, logit_rows, positions, lines, paths, depths, resolved_ids, tensors),
        histograms,
        thresholds,
        *masked_arguments(logit_rows, chosen, masks),
        warps=16,
        BLOCK=4096,
        BINS=BINS,
        MASKED=masks is not None,
    )


def filter_rows_reference(
    logits: torch.Tensor,
    logit_rows: torch.Tensor,
    positions: torch.Tensor,
    lines: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    resolved_ids: torch.Tensor,
    tensors: SamplingTensors,
    histograms: torch.Tensor,  # noqa: ARG001 (a twin takes what its op takes)
    thresholds: torch.Tensor,
    chosen: torch.Tensor | None = None,
    masks: torch.Tensor | None = None,
) -> None:
    """Twin of `filter_rows`, by a full sort."""
    for index, place, row in chosen_rows_reference(logit_rows, chosen):
        if row < 0:
            continue
        line = int(lines[row])
        words = tensors.params[line].cpu()
        temperature, top_p, min_p = words.view(torch.float32)[[table.TEMPERATURE, table.TOP_P, table.MIN_P]].tolist()
        top_k = int(words[table.TOP_K])
        if temperature > 0 and (top_k > 0 or top_p < 1 or min_p > 0):
            path = resolved_ids[paths[row, : int(depths[row])].long()]
            mask = None if masks is None else masks[index]
            x = process_row_reference(logits[place], line, int(positions[row]) + 1, path, tensors, mask)
            key, last = _threshold(x, top_k, top_p, min_p)
            thresholds[index, 0], thresholds[index, 1] = as_int32(key), last


def _threshold(x: torch.Tensor, top_k: int, top_p: float, min_p: float) -> tuple[int, int]:
    """Key and last id of a row of processed logits [vocab]."""
    keys = sort_key_reference(x)
    order = keys.sort(descending=True, stable=True).indices
    order = order[keys[order] > MINUS_INFINITY_KEY]
    if not len(order):
        return LARGEST_KEY, len(x) - 1
    peak = x[order[0]]
    if 0 < top_k < len(order):
        order = order[:top_k]
    if top_p < 1:
        sums = mass_reference(x[order], peak).cumsum(0)
        order = order[: int((sums < max(math.ceil(top_p * float(sums[-1])), 1)).sum()) + 1]
    key = int(keys[order[-1]])
    equals = keys == key
    whole = int(equals.sum()) == int(equals[order].sum())
    last = len(x) - 1 if whole else int(order[-1])
    if min_p > 0:
        least = int(sort_key_reference((peak.double() + math.log(min_p)).float()))
        if least > key:
            return least, len(x) - 1
    return key, last


def mass_reference(x: torch.Tensor, peak: torch.Tensor) -> torch.Tensor:
    """Twin of `mass_of`."""
    x = torch.where(x == peak, 0.0, (x - peak).clamp(min=_LOWEST_EXPONENT.value))
    n = (x * _LOG2_E.value + _ROUND.value) - _ROUND.value
    r = (x - n * _LN2_HIGH.value) - n * _LN2_LOW.value
    series = torch.full_like(x, 1 / 5040)
    for factorial in (720, 120, 24, 6, 2):
        series = 1 / factorial + r * series
    scale = ((n.int() + 127) << 23).view(torch.float32)
    whole: torch.Tensor = (1.0 + (r + (r * r) * series)) * scale * _MASS
    return whole.long()
