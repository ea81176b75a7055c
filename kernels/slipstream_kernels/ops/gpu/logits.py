"""What is done to a row of logits before sampling: bias, penalties, forbidden tokens, temperature, in this order.

The arithmetic is that of `ops/logits.py`: float32, correctly rounded quotients, nothing contracted. NaN becomes minus
infinity, so that it never passes a filter; what a target samples from keeps it, so that it is seen.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu import sampling_table as table
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.sampling_table import SamplingTensors
from slipstream_kernels.token_tree import MAX_ROWS

_FIELDS, _FLAGS, _MIN_POSITION = (tl.constexpr(v) for v in (table.FIELDS, table.FLAGS, table.MIN_POSITION))
_TEMPERATURE, _REPETITION = tl.constexpr(table.TEMPERATURE), tl.constexpr(table.REPETITION)
_PRESENCE, _FREQUENCY = tl.constexpr(table.PRESENCE), tl.constexpr(table.FREQUENCY)
_HAS_PENALTIES, _HAS_BIAS = tl.constexpr(table.HAS_PENALTIES), tl.constexpr(table.HAS_BIAS)
_HAS_MIN_TOKENS = tl.constexpr(table.HAS_MIN_TOKENS)
_IN_PROMPT, _ENDS_OUTPUT = tl.constexpr(table.IN_PROMPT), tl.constexpr(table.ENDS_OUTPUT)
_PATH = tl.constexpr(MAX_ROWS)
_MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def float_field(parameters: tl.tensor, line: tl.tensor, FIELD: tl.constexpr) -> tl.tensor:
    """A float32 field of a request's line."""
    return tl.load(parameters + line.to(tl.int64) * _FIELDS + FIELD).to(tl.float32, bitcast=True)


@triton.jit
def processed(request_row: tl.tuple, start: tl.tensor, BLOCK: tl.constexpr, MASKED: tl.constexpr = False) -> tl.tensor:
    """`processed_as_they_are` with minus infinity for NaN."""
    x = processed_as_they_are(request_row, start, BLOCK, MASKED)
    return tl.where(x == x, x, _MINUS_INFINITY)


@triton.jit
def processed_as_they_are(
    request_row: tl.tuple, start: tl.tensor, BLOCK: tl.constexpr, MASKED: tl.constexpr = False
) -> tl.tensor:
    """Processed logits float32 [BLOCK] of tokens start, start + 1, ...; minus infinity beyond the vocabulary.

    `request_row`: a pointer to the row's logits, vocabulary size, row of the pass, line, position that is decided,
    then paths, depths, resolved_ids, parameters, token_flags, output_counts and bias, and last a pointer to the row's
    mask, which is read where MASKED: bit v % 32 of int32 word v // 32 says whether token v may be chosen.
    """
    (
        source, vocab_size, row, line, position, paths, depths, resolved_ids,
        parameters, token_flags, output_counts, bias, mask,
    ) = request_row  # fmt: skip
    ids = start + tl.arange(0, BLOCK)
    inside = ids < vocab_size
    x = tl.load(source + ids, mask=inside, other=_MINUS_INFINITY)
    if MASKED:
        words = tl.load(mask + (ids >> 5), mask=inside, other=0)
        x = tl.where(((words >> (ids & 31)) & 1) != 0, x, _MINUS_INFINITY)
    flags = tl.load(parameters + line.to(tl.int64) * _FIELDS + _FLAGS)
    tables = line.to(tl.int64) * vocab_size
    if (flags & _HAS_BIAS) != 0:
        x += tl.load(bias + tables + ids, mask=inside, other=0.0)
    if (flags & _HAS_PENALTIES) != 0:
        count = tl.load(output_counts + tables + ids, mask=inside, other=0)
        count += _path_count(start, row, paths, depths, resolved_ids, BLOCK)
        seen = (tl.load(token_flags + tables + ids, mask=inside, other=0) & _IN_PROMPT) != 0
        repetition = float_field(parameters, line, _REPETITION)
        penalised = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
        x = tl.where((count > 0) | seen, penalised, x)
        penalised = x - float_field(parameters, line, _FREQUENCY) * count.to(tl.float32)
        x = tl.where(count > 0, penalised - float_field(parameters, line, _PRESENCE), x)
    min_position = tl.load(parameters + line.to(tl.int64) * _FIELDS + _MIN_POSITION)
    if ((flags & _HAS_MIN_TOKENS) != 0) & (position < min_position):
        ends = (tl.load(token_flags + tables + ids, mask=inside, other=0) & _ENDS_OUTPUT) != 0
        x = tl.where(ends, _MINUS_INFINITY, x)
    temperature = float_field(parameters, line, _TEMPERATURE)
    if temperature > 0:
        x = tl.div_rn(x, temperature)
    return x


@triton.jit
def _path_count(
    start: tl.tensor,
    row: tl.tensor,
    paths: tl.tensor,
    depths: tl.tensor,
    resolved_ids: tl.tensor,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """How often each of BLOCK tokens occurs among the drafted tokens of the row's path: int32 [BLOCK]."""
    count = tl.zeros((BLOCK,), tl.int32)
    depth = tl.load(depths + row)
    if depth > 0:
        path = paths + row.to(tl.int64) * _PATH
        places = tl.arange(0, _PATH)
        above = tl.load(path + places, mask=places < depth, other=0)
        tokens = tl.load(resolved_ids + above, mask=places < depth, other=-1)
        here = (tokens >= start) & (tokens < start + BLOCK)
        if tl.sum(here.to(tl.int32), 0) > 0:
            ids = start + tl.arange(0, BLOCK)
            for place in range(depth):
                count += (ids == tl.load(resolved_ids + tl.load(path + place))).to(tl.int32)
    return count


@triton.jit
def _process(
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
    out: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    release_next()
    wait_for_previous()
    start = tl.program_id(0) * BLOCK
    index = tl.program_id(1)
    row = tl.load(logit_rows + index)
    if row >= 0:
        source = logits + index.to(tl.int64) * logits_stride
        line = tl.load(lines + row)
        position = tl.load(positions + row) + 1
        request_row = (
            source, vocab_size, row, line, position, paths, depths, resolved_ids,
            parameters, token_flags, output_counts, bias, depths,
        )  # fmt: skip
        x = processed(request_row, start, BLOCK)
        ids = start + tl.arange(0, BLOCK)
        tl.store(out + index.to(tl.int64) * vocab_size + ids, x, mask=ids < vocab_size)


def process(
    logits: torch.Tensor,
    logit_rows: torch.Tensor,
    positions: torch.Tensor,
    lines: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    resolved_ids: torch.Tensor,
    tensors: SamplingTensors,
    out: torch.Tensor,
) -> None:
    """Processed logits as sampling uses them: float32 logits [n, vocab] (row stride free) to float32 out [n, vocab].

    int32: logit_rows [n], the row of the pass that each row of logits belongs to, -1 for padding, whose output is left
    alone; by row of the pass positions, lines, depths and resolved_ids [rows] and paths [rows, MAX_ROWS] as
    `tree_paths` writes them. A row decides the position after its own.
    """
    n, vocab_size = logits.shape
    block = 1024
    launch(
        _process,
        (triton.cdiv(vocab_size, block), n),
        *row_arguments(logits, logit_rows, positions, lines, paths, depths, resolved_ids, tensors),
        out,
        BLOCK=block,
    )


def row_arguments(
    logits: torch.Tensor,
    logit_rows: torch.Tensor,
    positions: torch.Tensor,
    lines: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    resolved_ids: torch.Tensor,
    tensors: SamplingTensors,
) -> tuple[torch.Tensor | int, ...]:
    """The first arguments of every kernel that calls `processed`.

    Raises ValueError where the tables are not of the logits' vocabulary.
    """
    vocab_size = logits.shape[1]
    tables = (tensors.token_flags, tensors.output_counts, tensors.bias)
    if logits.stride(1) != 1 or any(each.shape[1] != vocab_size for each in tables) or paths.shape[1] != MAX_ROWS:
        raise ValueError(f"logits {tuple(logits.shape)} fit neither {tuple(tensors.bias.shape)} nor {paths.shape}")
    rows = (logit_rows, positions, lines, paths, depths, resolved_ids)
    return logits, logits.stride(0), vocab_size, *rows, tensors.params, *tables


def process_reference(
    logits: torch.Tensor,
    logit_rows: torch.Tensor,
    positions: torch.Tensor,
    lines: torch.Tensor,
    paths: torch.Tensor,
    depths: torch.Tensor,
    resolved_ids: torch.Tensor,
    tensors: SamplingTensors,
    out: torch.Tensor,
) -> None:
    """Twin of `process`."""
    for index, row in enumerate(logit_rows.tolist()):
        if row >= 0:
            path = resolved_ids[paths[row, : int(depths[row])].long()]
            position = int(positions[row]) + 1
            out[index] = process_row_reference(logits[index], int(lines[row]), position, path, tensors)


def process_row_reference(
    logits: torch.Tensor,
    line: int,
    position: int,
    path: torch.Tensor,
    tensors: SamplingTensors,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """A row's processed logits [vocab]: `path` int32 [depth] are the drafted tokens that lead to it.

    `mask`: int32 [words], of the tokens that may be chosen, where not all may.
    """
    x = row_as_it_is_reference(logits, line, position, path, tensors, mask)
    return torch.where(x.isnan(), float("-inf"), x)


def row_as_it_is_reference(
    logits: torch.Tensor,
    line: int,
    position: int,
    path: torch.Tensor,
    tensors: SamplingTensors,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """`process_row_reference` that keeps NaN."""
    words = tensors.params[line]
    floats = words.view(torch.float32)
    flags, x = int(words[table.FLAGS]), logits
    if mask is not None:
        bits = torch.arange(32, dtype=torch.int32, device=x.device)
        x = x.masked_fill(((mask.unsqueeze(-1) >> bits) & 1).flatten()[: len(x)] == 0, float("-inf"))
    if flags & table.HAS_BIAS:
        x = x + tensors.bias[line]
    if flags & table.HAS_PENALTIES:
        ones = torch.ones(len(path), dtype=torch.int32, device=x.device)
        count = tensors.output_counts[line].index_add(0, path.long(), ones)
        repeated = (count > 0) | (tensors.token_flags[line] & table.IN_PROMPT > 0)
        repetition = floats[table.REPETITION].expand_as(x)
        x = torch.where(repeated, torch.where(x > 0, x / repetition, x * repetition), x)
        penalised = x - floats[table.FREQUENCY] * count.float() - floats[table.PRESENCE]
        x = torch.where(count > 0, penalised, x)
    if flags & table.HAS_MIN_TOKENS and position < int(words[table.MIN_POSITION]):
        x = x.masked_fill(tensors.token_flags[line] & table.ENDS_OUTPUT > 0, float("-inf"))
    if floats[table.TEMPERATURE] > 0:
        x = x / floats[table.TEMPERATURE].expand_as(x)
    return x
