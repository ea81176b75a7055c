"""Sampling on the device: argmax over the candidates of processed logits plus published noise.

A row's token is a function of its logits and parameters, whatever the number of rows: maxima and the lowest id of
equals do not depend on how the vocabulary is split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu import sampling_table as table
from slipstream_kernels.ops.gpu.filters import BINS, filter_rows, filter_rows_reference, is_filtered, is_kept
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.logits import (
    float_field,
    processed_as_they_are,
    row_arguments,
    row_as_it_is_reference,
)
from slipstream_kernels.ops.gpu.masked_rows import (
    chosen_row,
    chosen_rows_reference,
    is_sampled,
    mask_row,
    masked_arguments,
)
from slipstream_kernels.ops.gpu.philox import gumbel_reference, noise_bits, noise_bound, noise_of
from slipstream_kernels.ops.gpu.sampling_table import SamplingTensors
from slipstream_kernels.ops.gpu.sort_keys import sort_key_reference

_BLOCK = 1024
_BLOCKS = ((4, 1), (32, 4))
"""How many blocks a program takes up to a number of rows of logits: few rows are spread over the device."""
_MOST_BLOCKS = 16
_TEMPERATURE = tl.constexpr(table.TEMPERATURE)
_MINUS_INFINITY, _INFINITY = tl.constexpr(float("-inf")), tl.constexpr(float("inf"))
_NO_ID = tl.constexpr(2**31 - 1)


@dataclass(frozen=True, slots=True)
class SamplingWorkspace:
    """Scratch of `sample` for a number of rows of logits; nothing outlives a call."""

    histograms: torch.Tensor
    """int64 [n, BINS]"""
    thresholds: torch.Tensor
    """int32 [n, 2], of `filter_rows`"""
    scores: torch.Tensor
    """float32 [n, splits], the best score of each part of the vocabulary"""
    ids: torch.Tensor
    """int32 [n, splits], the lowest id with that score"""


def sampling_workspace(max_logits: int, vocab_size: int, device: torch.device) -> SamplingWorkspace:
    """Scratch for up to `max_logits` rows of logits."""
    splits = triton.cdiv(vocab_size, _BLOCK)
    return SamplingWorkspace(
        histograms=torch.zeros(max_logits, BINS, dtype=torch.int64, device=device),
        thresholds=torch.zeros(max_logits, 2, dtype=torch.int32, device=device),
        scores=torch.zeros(max_logits, splits, dtype=torch.float32, device=device),
        ids=torch.zeros(max_logits, splits, dtype=torch.int32, device=device),
    )


@triton.jit
def _score(
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
    thresholds: tl.tensor,
    scores: tl.tensor,
    best_ids: tl.tensor,
    chosen: tl.tensor,
    masks: tl.tensor,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    MASKED: tl.constexpr,
) -> None:
    """Best score and its lowest id among BLOCKS * BLOCK tokens of a row; NaN counts as infinity.

    Exact noise is drawn for blocks of which a token may beat those before it, few of many.
    """
    release_next()
    wait_for_previous()
    split = tl.program_id(0)
    index = tl.program_id(1)
    place, row = chosen_row(index, logit_rows, chosen, MASKED)
    if row >= 0:
        line = tl.load(lines + row)
        position = tl.load(positions + row) + 1
        request_row = (
            logits + place.to(tl.int64) * logits_stride, vocab_size, row, line, position, paths, depths, resolved_ids,
            parameters, token_flags, output_counts, bias, mask_row(index, masks, vocab_size),
        )  # fmt: skip
        noisy = float_field(parameters, line, _TEMPERATURE) > 0
        filtered = is_filtered(parameters, line)
        best = tl.full((BLOCK,), _MINUS_INFINITY, tl.float32)
        score = tl.max(best, 0)
        first = split * (BLOCK * BLOCKS)
        best_id = first + tl.arange(0, BLOCK)
        end = tl.where(is_sampled(parameters, line, MASKED), tl.minimum(first + BLOCK * BLOCKS, vocab_size), first)
        for start in range(first, end, BLOCK):
            x = processed_as_they_are(request_row, start, BLOCK, MASKED)
            x = tl.where(x == x, x, _INFINITY)
            ids = start + tl.arange(0, BLOCK)
            if filtered:
                x = tl.where(is_kept(x, ids, thresholds, index), x, _MINUS_INFINITY)
            if noisy:
                bits = noise_bits(ids, position, parameters, line)
                if tl.max(x + noise_bound(bits), 0) > score:
                    x += noise_of(bits)
                    score = tl.maximum(score, tl.max(x, 0))
                else:
                    x = tl.full((BLOCK,), _MINUS_INFINITY, tl.float32)
            best_id = tl.where(x > best, ids, best_id)
            best = tl.maximum(best, x)
        score = tl.max(best, 0)
        tl.store(scores + index * tl.num_programs(0) + split, score)
        tl.store(best_ids + index * tl.num_programs(0) + split, tl.min(tl.where(best == score, best_id, _NO_ID), 0))


@triton.jit
def _choose(
    logit_rows: tl.tensor,
    scores: tl.tensor,
    best_ids: tl.tensor,
    out: tl.tensor,
    splits: int,
    chosen: tl.tensor,
    SPLITS: tl.constexpr,
    MASKED: tl.constexpr,
) -> None:
    """The best of a row's splits, -1 unless it is finite; SPLITS is a power of two of at least `splits`."""
    release_next()
    wait_for_previous()
    index = tl.program_id(0)
    split = tl.arange(0, SPLITS)
    place, row = chosen_row(index, logit_rows, chosen, MASKED)
    inside = (split < splits) & (row >= 0)
    score = tl.load(scores + index * splits + split, mask=inside, other=_MINUS_INFINITY)
    ids = tl.load(best_ids + index * splits + split, mask=inside, other=_NO_ID)
    best = tl.max(score, 0)
    token = tl.min(tl.where(score == best, ids, _NO_ID), 0)
    tl.store(out + place, tl.where((row >= 0) & (tl.abs(best) < _INFINITY), token, -1), mask=place >= 0)


def sample(
    logits: torch.Tensor,
    logit_rows: torch.Tensor,
    positions: torch.Tensor,
    lines: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    resolved_ids: torch.Tensor,
    tensors: SamplingTensors,
    workspace: SamplingWorkspace,
    out: torch.Tensor,
    chosen: torch.Tensor | None = None,
    masks: torch.Tensor | None = None,
) -> None:
    """The token of each row of logits: int32 out [n], -1 for padding. Inputs as for `process`; logits are left alone.

    chosen: int32 [m], rows of logits that alone are sampled, those below 0 not; what `out` has for others stays. masks:
    int32 [m, ceil(vocab / 32)], bit v % 32 of word v // 32 says whether the row may get token v.

    In this order: mask, bias, penalties, forbidden tokens; division by T; top-k, top-p, min-p; noise; argmax, the
    lowest id of equals. T = 0 takes the argmax of the processed logits. A row gets -1, too, whose processed logits hold
    a NaN or infinity, or minus infinity alone: nothing is decided by what is no number. And one without a mask, of a
    line that awaits them.
    """
    n, vocab_size = logits.shape
    arguments = row_arguments(logits, logit_rows, positions, lines, paths, depths, resolved_ids, tensors)
    filter_rows(
        logits, logit_rows, positions, lines, paths, depths, resolved_ids, tensors,
        workspace.histograms, workspace.thresholds, chosen, masks,
    )  # fmt: skip
    n = n if chosen is None else len(chosen)
    blocks = next((blocks for rows, blocks in _BLOCKS if n <= rows), _MOST_BLOCKS)
    splits = triton.cdiv(vocab_size, _BLOCK * blocks)
    best, masked = (workspace.scores, workspace.ids), masked_arguments(logit_rows, chosen, masks)
    options = {"MASKED": masks is not None}
    launch(
        _score, (splits, n), *arguments, workspace.thresholds, *best, *masked, BLOCK=_BLOCK, BLOCKS=blocks, **options
    )
    launch(_choose, (n,), logit_rows, *best, out, splits, masked[0], SPLITS=triton.next_power_of_2(splits), **options)


def sample_reference(
    logits: torch.Tensor,
    logit_rows: torch.Tensor,
    positions: torch.Tensor,
    lines: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    resolved_ids: torch.Tensor,
    tensors: SamplingTensors,
    workspace: SamplingWorkspace,
    out: torch.Tensor,
    chosen: torch.Tensor | None = None,
    masks: torch.Tensor | None = None,
) -> None:
    """Twin of `sample`."""
    inputs = logits, logit_rows, positions, lines, paths, depths, resolved_ids, tensors
    filter_rows_reference(*inputs, workspace.histograms, workspace.thresholds, chosen, masks)
    ids = torch.arange(logits.shape[1], device=logits.device)
    for index, place, row in chosen_rows_reference(logit_rows, chosen):
        if place < 0:
            continue
        line = lines[max(row, 0)]
        if row < 0 or (masks is None and int(tensors.params[line, table.FLAGS]) & table.AWAITS_MASKS):
            out[place] = -1
            continue
        floats = tensors.params[line].view(torch.float32)
        path = resolved_ids[paths[row, : int(depths[row])].long()]
        mask = None if masks is None else masks[index]
        score = row_as_it_is_reference(logits[place], int(line), int(positions[row]) + 1, path, tensors, mask)
        if not bool(score.max().isfinite()):
            out[place] = -1
            continue
        if floats[table.TEMPERATURE] > 0:
            if tensors.params[line, table.TOP_K] > 0 or floats[table.TOP_P] < 1 or floats[table.MIN_P] > 0:
                keys = sort_key_reference(score)
                threshold, last = int(workspace.thresholds[index, 0]) % 2**32, workspace.thresholds[index, 1]
                kept = (keys > threshold) | ((keys == threshold) & (ids <= last))
                score = score.masked_fill(~kept, float("-inf"))
            noise = torch.empty(1, len(score), device=score.device)
            gumbel_reference(tensors.params, line[None], positions[row, None] + 1, noise)
            score = score + noise[0]
        out[place] = int((score == score.max()).int().argmax())
