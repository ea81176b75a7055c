"""The best tokens of a draft's logits, under the target's noise where a request samples, and how likely each is right.

With the noise of the request, the best by draft_logits / T + g is the token most likely to be the target's own
sample ("Coupling without communication and drafter-invariant speculative decoding", arXiv 2408.07978). At T = 0 the
noise drops out. A row is cut into parts of the vocabulary; each part's best are merged afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu import sampling_table as table
from slipstream_kernels.ops.gpu.filters import BINS, filter_rows, filter_rows_reference, is_filtered, is_kept
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.logits import float_field, process_reference, processed, row_arguments
from slipstream_kernels.ops.gpu.philox import gumbel_reference, noise_bits, noise_near
from slipstream_kernels.ops.gpu.preference_keys import NOTHING, number_of, preference_key, score_of
from slipstream_kernels.ops.gpu.sampling_table import SamplingTensors
from slipstream_kernels.ops.gpu.sort_keys import sort_key_reference

MOST_WIDTH = 16
"""Most places of a row."""
EXTRA = 3
"""Candidates beyond the places wanted that stand for the rest of the vocabulary in a coupled score."""
_SMALLEST_BLOCK = 1024
_BLOCKS = ((2**20, 1024), (2**22, 2048))
"""Tokens a program takes, up to a number of logits: few rows are spread over the device."""
_LARGEST_BLOCK = 4096
_TEMPERATURE = tl.constexpr(table.TEMPERATURE)
_MINUS_INFINITY, _LOWEST = tl.constexpr(float("-inf")), tl.constexpr(-1e30)
_EXTRA = tl.constexpr(EXTRA)


@dataclass(frozen=True, slots=True)
class DraftTopKWorkspace:
    """Scratch of `draft_top_k`; nothing outlives a call."""

    histograms: torch.Tensor
    """int64 [n, BINS]"""
    thresholds: torch.Tensor
    """int32 [n, 2], of `filter_rows`"""
    keys: torch.Tensor
    """int64 [n * parts * candidates], of scores and places"""
    logits: torch.Tensor
    """float32 [n * parts * candidates], processed, of rows that sample"""
    peaks: torch.Tensor
    """float32 [n * parts], the largest processed logit"""
    sums: torch.Tensor
    """float32 [n * parts], of e^(logit - peak)"""


def draft_top_k_workspace(max_rows: int, vocab_size: int, width: int, device: torch.device | str) -> DraftTopKWorkspace:
    """Scratch for up to `max_rows` rows of logits and `width` places of each."""
    parts = max_rows * triton.cdiv(vocab_size, _SMALLEST_BLOCK)
    candidates = parts * (width + EXTRA)
    return DraftTopKWorkspace(
        histograms=torch.zeros(max_rows, BINS, dtype=torch.int64, device=device),
        thresholds=torch.zeros(max_rows, 2, dtype=torch.int32, device=device),
        keys=torch.zeros(candidates, dtype=torch.int64, device=device),
        logits=torch.zeros(candidates, dtype=torch.float32, device=device),
        peaks=torch.zeros(parts, dtype=torch.float32, device=device),
        sums=torch.zeros(parts, dtype=torch.float32, device=device),
    )


@triton.jit
def _candidates(noisy: tl.tensor, WIDTH: tl.constexpr) -> tl.tensor:
    """How many candidates of a row are looked for."""
    return tl.where(noisy & (WIDTH > 1), WIDTH + _EXTRA, WIDTH)


@triton.jit
def _best_of_part(
    logits: tl.tensor,
    logits_stride: int,
    vocab_size: int,
    logit_rows: tl.tensor,
    positions: tl.tensor,
    lines: tl.tensor,
    paths: tl.tensor,
    depths: tl.tensor,
    places: tl.tensor,
    parameters: tl.tensor,
    token_flags: tl.tensor,
    output_counts: tl.tensor,
    bias: tl.tensor,
    vocabulary: tl.tensor,
    thresholds: tl.tensor,
    out_keys: tl.tensor,
    out_logits: tl.tensor,
    out_peaks: tl.tensor,
    out_sums: tl.tensor,
    WIDTH: tl.constexpr,
    MAPPED: tl.constexpr,
    FILTERED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The best candidates of one part of one row, best first, and what the part adds to the row's normaliser."""
    release_next()
    wait_for_previous()
    start = tl.program_id(0) * BLOCK
    index = tl.program_id(1)
    row = tl.load(logit_rows + index)
    if row >= 0:
        line = tl.load(lines + row)
        position = tl.load(positions + row) + 1
        request_row = (
            logits + index.to(tl.int64) * logits_stride, vocab_size, row, line, position, paths, depths, places,
            parameters, token_flags, output_counts, bias, depths,
        )  # fmt: skip
        noisy = float_field(parameters, line, _TEMPERATURE) > 0
        own = start + tl.arange(0, BLOCK)
        x = processed(request_row, start, BLOCK)
        part = index.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        peak = tl.maximum(tl.max(x, 0), _LOWEST)
        tl.store(out_peaks + part, peak)
        tl.store(out_sums + part, tl.sum(tl.exp(x - peak), 0))

        score = x
        if FILTERED:  # noqa: SIM102 - the outer condition is resolved by the compiler
            if is_filtered(parameters, line):
                score = tl.where(is_kept(x, own, thresholds, index), x, _MINUS_INFINITY)
        if noisy:
            tokens = own
            if MAPPED:
                tokens = tl.load(vocabulary + own, mask=own < vocab_size, other=0)
            score += noise_near(noise_bits(tokens, position, parameters, line))
        key = preference_key(score > _MINUS_INFINITY, score, own)
        rank = tl.full((BLOCK,), WIDTH + _EXTRA, tl.int32)
        first = part * (WIDTH + _EXTRA)
        for i in range(_candidates(noisy, WIDTH)):
            best = tl.max(key, 0)
            tl.store(out_keys + first + i, best)
            rank = tl.where((key == best) & (best > NOTHING), i, rank)
            key = tl.where(key == best, NOTHING, key)
        if noisy:
            tl.store(out_logits + first + rank, x, mask=rank < WIDTH + _EXTRA)


@triton.jit
def _best_of_row(
    logit_rows: tl.tensor,
    lines: tl.tensor,
    parameters: tl.tensor,
    keys: tl.tensor,
    logits: tl.tensor,
    peaks: tl.tensor,
    sums: tl.tensor,
    out_places: tl.tensor,
    out_scores: tl.tensor,
    out_log_probs: tl.tensor,
    parts: int,
    WIDTH: tl.constexpr,
    SLOTS: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """Merge a row's parts. SLOTS and PARTS are powers of two: at least a part's candidates and `parts`."""
    release_next()
    wait_for_previous()
    index = tl.program_id(0)
    row = tl.load(logit_rows + index)
    line = tl.load(lines + tl.maximum(row, 0))
    temperature = float_field(parameters, line, _TEMPERATURE)
    noisy = temperature > 0
    wanted = _candidates(noisy, WIDTH)
    first = index.to(tl.int64) * parts

    part = tl.arange(0, PARTS)
    present = (part < parts) & (row >= 0)
    part_peaks = tl.load(peaks + first + part, mask=present, other=_LOWEST)
    part_sums = tl.load(sums + first + part, mask=present, other=0.0)
    peak = tl.max(part_peaks, 0)
    total = tl.sum(part_sums * tl.exp(part_peaks - peak), 0)
    normaliser = tl.log(tl.where(total > 0, total, 1.0))

    entry = tl.arange(0, PARTS * SLOTS)
    slot = entry % SLOTS
    entry = (first + entry // SLOTS) * (WIDTH + _EXTRA) + slot
    held = (tl.arange(0, PARTS * SLOTS) // SLOTS < parts) & (slot < wanted) & (row >= 0)
    key = tl.load(keys + entry, mask=held, other=NOTHING)
    noisy_slots = tl.where(noisy, wanted, 0)
    x = tl.load(logits + entry, mask=(slot < noisy_slots) & (key > NOTHING), other=_MINUS_INFINITY)
    order = tl.arange(0, SLOTS)
    best_keys = tl.full((SLOTS,), NOTHING, tl.int64)
    best_logits = tl.full((SLOTS,), _MINUS_INFINITY, tl.float32)
    for i in range(wanted):
        best = tl.max(key, 0)
        best_keys = tl.where(order == i, best, best_keys)
        if noisy:
            best_logits = tl.where(order == i, tl.max(tl.where(key == best, x, _MINUS_INFINITY), 0), best_logits)
        key = tl.where(key == best, NOTHING, key)

    found = best_keys > NOTHING
    ranked = score_of(best_keys)
    if not noisy:
        best_logits = ranked
    log_prob = tl.where(found, best_logits - peak - normaliser, _MINUS_INFINITY)
    score = log_prob
    if noisy & (WIDTH > 1):
        perturbed = tl.where(found, temperature * (ranked - peak - normaliser), _MINUS_INFINITY)
        highest = tl.maximum(tl.max(perturbed, 0), _LOWEST)
        rest = tl.sum(tl.exp(perturbed - highest), 0)
        score = tl.where(found, perturbed - highest - tl.log(tl.maximum(rest, 1.0)), _MINUS_INFINITY)
    place = tl.where(found, number_of(best_keys), -1)
    target = index * WIDTH + order
    tl.store(out_places + target, place, mask=order < WIDTH)
    tl.store(out_scores + target, score, mask=order < WIDTH)
    tl.store(out_log_probs + target, log_prob, mask=order < WIDTH)


def draft_top_k(
    logits: torch.Tensor,
    logit_rows: torch.Tensor,
    positions: torch.Tensor,
    lines: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    places: torch.Tensor,
    tensors: SamplingTensors,
    vocabulary: torch.Tensor | None,
    workspace: DraftTopKWorkspace,
    out_places: torch.Tensor,
    out_scores: torch.Tensor,
    out_log_probs: torch.Tensor,
    *,
    filtered: bool = True,
) -> None:
    """The best places of each row of logits, best first, the lowest place first of equals.

    float32 logits [n, vocab], row stride free. int32: logit_rows [n], -1 for padding, else where the row of logits is
    among positions, lines, depths [rows] and paths [rows, MAX_ROWS] (rows of the round, see `FrontierRows`, whose
    `all_places` are `places`); a row decides the position after its own. `tensors` has the rules of sampling with
    tables over places. int32 vocabulary [vocab]: the target's id of each place, for which the noise is drawn; None
    where places are ids.
    Outputs [n, width], width at most MOST_WIDTH: int32 places, -1 for padding and where fewer pass the filters or have
    a logit above minus infinity; float32 scores, the logarithm of the estimated probability that the place is what the
    target will choose; float32 log-probabilities of the processed logits, unfiltered. At T = 0, or width 1, the score
    is the log-probability. Else it is the log-softmax of T (log-probability + noise) over width + EXTRA candidates: the
    draft's own distribution at T = 0, and at higher T one that knows the noise.
    Without `filtered` no line has a filter.
    """
    (n, vocab_size), width = logits.shape, out_places.shape[1]
    assert 1 <= width <= MOST_WIDTH
    assert out_places.is_contiguous()
    assert out_scores.is_contiguous()
    assert out_log_probs.is_contiguous()
    inputs = logits, logit_rows, positions, lines, paths, depths, places, tensors
    if filtered:
        filter_rows(*inputs, workspace.histograms, workspace.thresholds)
    block = next((block for size, block in _BLOCKS if n * vocab_size <= size), _LARGEST_BLOCK)
    parts = triton.cdiv(vocab_size, block)
    scratch = workspace.keys, workspace.logits, workspace.peaks, workspace.sums
    assert n * parts * (width + EXTRA) <= len(workspace.keys)
    launch(
        _best_of_part,
        (parts, n),
        *row_arguments(*inputs),
        vocabulary,
        workspace.thresholds,
        *scratch,
        warps=max(block // 256, 4),
        WIDTH=width,
        MAPPED=vocabulary is not None,
        FILTERED=filtered,
        BLOCK=block,
    )
    slots = triton.next_power_of_2(width + EXTRA) if width > 1 else 1
    padded_parts = triton.next_power_of_2(parts)
    launch(
        _best_of_row,
        (n,),
        logit_rows,
        lines,
        tensors.params,
        *scratch,
        out_places,
        out_scores,
        out_log_probs,
        parts,
        warps=min(max(padded_parts * slots // 512, 1), 8),
        WIDTH=width,
        SLOTS=slots,
        PARTS=padded_parts,
    )


def draft_top_k_reference(
    logits: torch.Tensor,
    logit_rows: torch.Tensor,
    positions: torch.Tensor,
    lines: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    places: torch.Tensor,
    tensors: SamplingTensors,
    vocabulary: torch.Tensor | None,
    workspace: DraftTopKWorkspace,
    out_places: torch.Tensor,
    out_scores: torch.Tensor,
    out_log_probs: torch.Tensor,
    *,
    filtered: bool = True,
) -> None:
    """Twin of `draft_top_k`, with exact noise."""
    inputs = logits, logit_rows, positions, lines, paths, depths, places, tensors
    x = torch.full_like(logits, float("-inf"))
    process_reference(*inputs, x)
    if filtered:
        filter_rows_reference(*inputs, workspace.histograms, workspace.thresholds)
    for output, nothing in ((out_places, -1), (out_scores, float("-inf")), (out_log_probs, float("-inf"))):
        output.fill_(nothing)
    for index, row in enumerate(logit_rows.tolist()):
        if row >= 0:
            kept = _kept_reference(x[index], tensors.params[lines[row]], workspace.thresholds[index])
            noise = _noise_reference(x[index], vocabulary, tensors.params, lines[row], positions[row])
            found = _best_reference(x[index], kept, noise, tensors.params[lines[row]], out_places.shape[1])
            for output, values in zip((out_places, out_scores, out_log_probs), found, strict=True):
                output[index, : len(values)] = values


def _kept_reference(x: torch.Tensor, line: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """bool [vocab], which processed logits x pass the filters of a line of parameters."""
    floats, ids = line.view(torch.float32), torch.arange(len(x), device=x.device)
    if floats[table.TEMPERATURE] == 0 or not (
        line[table.TOP_K] > 0 or floats[table.TOP_P] < 1 or floats[table.MIN_P] > 0
    ):
        return x > float("-inf")
    keys, least = sort_key_reference(x), int(threshold[0]) % 2**32
    return (x > float("-inf")) & ((keys > least) | ((keys == least) & (ids <= threshold[1])))


def _noise_reference(
    x: torch.Tensor, vocabulary: torch.Tensor | None, params: torch.Tensor, line: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """float32 [vocab], the noise of each place at the position after `position`; 0 at T = 0."""
    if params[line].view(torch.float32)[table.TEMPERATURE] == 0:
        return torch.zeros_like(x)
    ids = torch.arange(len(x), device=x.device) if vocabulary is None else vocabulary.long()
    noise = torch.empty(1, int(ids.max()) + 1, device=x.device)
    gumbel_reference(params, line[None], position[None] + 1, noise)
    return noise[0, ids]


def _best_reference(
    x: torch.Tensor, kept: torch.Tensor, noise: torch.Tensor, line: torch.Tensor, width: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Places, scores and log-probabilities of a row, as many as there are, at most `width`."""
    temperature = line.view(torch.float32)[table.TEMPERATURE]
    coupled = bool(temperature > 0) and width > 1
    ranked = torch.where(kept, x + noise, float("-inf"))
    order = ranked.sort(descending=True, stable=True).indices[: min(width + EXTRA * coupled, int(kept.sum()))]
    log_probs = x[order].double() - x.double().logsumexp(0)
    scores = (temperature * (log_probs + noise[order])).log_softmax(0) if coupled else log_probs
    return order[:width], scores[:width], log_probs[:width]
