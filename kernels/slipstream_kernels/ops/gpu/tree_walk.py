"""Acceptance: follow sampled tokens from the root through the drafted tree, on the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.sampling_table import FIELDS, FLAGS, HAS_PENALTIES, SamplingTensors
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

RESULT_WIDTH = 2 + 2 * MAX_ROWS
"""Columns of `result`: number accepted, line, accepted node indices, committed tokens."""


@triton.jit
def _tree_walk(
    sampled: tl.tensor,
    deciding: tl.tensor,
    logit_rows: tl.tensor,
    parents: tl.tensor,
    resolved_ids: tl.tensor,
    last_tokens: tl.tensor,
    parameters: tl.tensor,
    output_counts: tl.tensor,
    result: tl.tensor,
    VOCAB: tl.constexpr,
    PARAMS_WIDTH: tl.constexpr,
    FLAGS_WORD: tl.constexpr,
    PENALTIES: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """One item a program. A place is a row's index within its item: 0 the root, node + 1 a node."""
    release_next()
    wait_for_previous()
    item = tl.program_id(0)
    first = tl.load(deciding + item * 4)
    count = tl.load(deciding + item * 4 + 1)
    line = tl.load(deciding + item * 4 + 2, mask=count > 0, other=0)
    places = tl.arange(0, WIDTH)
    drafted = (places > 0) & (places < count)
    rows = tl.load(logit_rows + first + places, mask=drafted, other=0)
    parent_places = tl.load(parents + rows, mask=drafted, other=0) + 1
    tokens = tl.load(resolved_ids + rows, mask=drafted, other=0)

    token = tl.load(sampled + first, mask=count > 0, other=0)
    committed = tl.where(places == 0, token, 0)
    nodes = tl.zeros((WIDTH,), tl.int32)
    accepted = 0
    place = tl.min(tl.where(drafted & (parent_places == 0) & (tokens == token), places, WIDTH))
    while place < WIDTH:
        token = tl.load(sampled + first + place)
        nodes = tl.where(places == accepted, place - 1, nodes)
        accepted += 1
        committed = tl.where(places == accepted, token, committed)
        follows = drafted & (parent_places == place) & (tokens == token) & (places > place)
        place = tl.min(tl.where(follows, places, WIDTH))

    result += item * (2 + 2 * WIDTH)
    here = count >= 0
    tl.store(result, accepted, mask=here)
    tl.store(result + 1, line, mask=here)
    tl.store(result + 2 + places, nodes, mask=here & (places >= 0))
    tl.store(result + 2 + WIDTH + places, committed, mask=here & (places >= 0))
    tl.store(last_tokens + line, token, mask=count > 0)
    flags = tl.load(parameters + line * PARAMS_WIDTH + FLAGS_WORD, mask=count > 0, other=0)
    counted = (places <= accepted) & (committed >= 0) & ((flags & PENALTIES) != 0)
    tl.atomic_add(output_counts + line.to(tl.int64) * VOCAB + committed, 1, mask=counted, sem="relaxed")


def tree_walk(
    sampled: torch.Tensor,
    deciding: torch.Tensor,
    logit_rows: torch.Tensor,
    parents: torch.Tensor,
    resolved_ids: torch.Tensor,
    last_tokens: torch.Tensor,
    tensors: SamplingTensors,
    result: torch.Tensor,
) -> None:
    """Sample, then match, as `TokenTree.walk`: from the root, the first child that carries the sampled token.

    Inputs, int32: sampled and logit_rows [logits], the token sampled at a row and that row; deciding [items, 4], an
    item's first logit index, number of rows (root included, 0 for a padding item, below 0 for one that is left as it
    is), line and base length; parents and resolved_ids [rows]. Outputs: int32 result [items, 130], the number accepted,
    the line, from column 2 the accepted nodes' indices and from column 66 the committed tokens, one more than accepted;
    what is not used is 0. The last committed token goes to last_tokens[line]; of lines with penalties all are added to
    `tensors.output_counts`. It is -1 where that was sampled, as nothing could be decided.
    """
    launch(
        _tree_walk,
        (len(deciding),),
        sampled,
        deciding,
        logit_rows,
        parents,
        resolved_ids,
        last_tokens,
        tensors.params,
        tensors.output_counts,
        result,
        warps=1,
        VOCAB=tensors.output_counts.shape[1],
        PARAMS_WIDTH=FIELDS,
        FLAGS_WORD=FLAGS,
        PENALTIES=HAS_PENALTIES,
        WIDTH=MAX_ROWS,
    )


def tree_walk_reference(
    sampled: torch.Tensor,
    deciding: torch.Tensor,
    logit_rows: torch.Tensor,
    parents: torch.Tensor,
    resolved_ids: torch.Tensor,
    last_tokens: torch.Tensor,
    tensors: SamplingTensors,
    result: torch.Tensor,
) -> None:
    """The same in torch."""
    for item, (first, count, line, _) in enumerate(deciding.tolist()):
        if count < 0:
            continue
        result[item] = 0
        if count == 0:
            continue
        rows = logit_rows[first + 1 : first + count].long()
        tree = TokenTree(tuple(resolved_ids[rows].tolist()), tuple(parents[rows].tolist()))
        root_token, *node_tokens = sampled[first : first + count].tolist()
        accepted, committed = tree.walk(root_token, node_tokens)
        filled = [len(accepted), line, *accepted, *[0] * (MAX_ROWS - len(accepted)), *committed]
        result[item, : len(filled)] = torch.tensor(filled, dtype=result.dtype)
        last_tokens[line] = committed[-1]
        if int(tensors.params[line, FLAGS]) & HAS_PENALTIES:
            for token in (token for token in committed if token >= 0):
                tensors.output_counts[line, token] += 1
