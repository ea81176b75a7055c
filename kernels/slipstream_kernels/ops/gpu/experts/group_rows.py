"""Rows by the experts that compute them, in blocks of which each has one expert.

A pair is a row and one of its experts: pair p is the expert at place p % chosen of row p // chosen. The number of
blocks is that of the worst case, as a captured graph has one grid; blocks without pairs say so. Which pairs share a
block changes no bit of any of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton import next_power_of_2

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous

WORDS = 3
"""Of a block: its expert, the first of its places in the order, and how many pairs it has."""
LEAST_TOKENS, MOST_TOKENS = 16, 128
"""Pairs of a block, at most."""
TOGETHER = 8
"""Blocks whose programs of the same outputs run beside one another, so that an expert's weights are read once."""
_CHUNK = 1024


@dataclass(frozen=True, slots=True)
class ExpertGroups:
    """int32 order [pairs], pairs by rising expert; int32 blocks [count, WORDS] of at most `tokens` pairs each."""

    order: torch.Tensor
    blocks: torch.Tensor
    tokens: int


def are_grouped(pairs: int, experts: int, chosen: int) -> bool:
    """Whether rows are grouped before they are computed: with few, most experts have one, and grouping takes time."""
    return pairs > max(chosen, experts // 4)


def tokens_of(pairs: int, experts: int) -> int:
    """Pairs of a block at most, for so many in all.

    Where all experts are as likely, five of six have a block alone: a second one would read and decode their weights
    again.
    """
    mean = pairs / experts
    return min(max(int(next_power_of_2(math.ceil(mean + math.sqrt(mean)))), LEAST_TOKENS), MOST_TOKENS)


def most_blocks(pairs: int, experts: int, tokens: int) -> int:
    """Blocks there are, whatever experts the pairs have."""
    return pairs // tokens + experts


@triton.jit
def place_of(program: tl.tensor, programs: tl.tensor, tiles: tl.tensor, TOGETHER: tl.constexpr) -> Any:
    """(block, tile) of a program: all tiles of TOGETHER blocks, then those of the following ones; blocks go fastest."""
    first = program // (TOGETHER * tiles) * TOGETHER
    width = tl.minimum(programs // tiles - first, TOGETHER)
    within = program - first * tiles
    return first + within % width, within // width


@triton.jit
def _group(
    ids: tl.tensor, order: tl.tensor, blocks: tl.tensor, pairs: int, count: int, TOKENS: tl.constexpr,
    CHUNK: tl.constexpr, WORDS: tl.constexpr,
) -> None:  # fmt: skip
    """A program has an expert. With b pairs of lower experts its blocks begin with number b // TOKENS + expert.

    All `count` blocks are written: those behind the last expert's pairs, of which padding leaves some, are its own too.
    """
    release_next()
    wait_for_previous()
    expert = tl.program_id(0)
    lanes = tl.arange(0, CHUNK)
    below, own = 0, 0
    for start in range(0, pairs, CHUNK):
        of = tl.load(ids + start + lanes, mask=start + lanes < pairs, other=0x7FFFFFFF)
        below += tl.sum((of < expert).to(tl.int32), 0)
        own += tl.sum((of == expert).to(tl.int32), 0)
    first_block = below // TOKENS + expert
    end_block = (below + own) // TOKENS + expert + 1
    for block in range(first_block, tl.where(expert == tl.num_programs(0) - 1, count, end_block)):
        first = (block - first_block) * TOKENS
        tl.store(blocks + block * WORDS, expert)
        tl.store(blocks + block * WORDS + 1, below + first)
        tl.store(blocks + block * WORDS + 2, tl.minimum(tl.maximum(own - first, 0), TOKENS))
    place = below
    for start in range(0, pairs, CHUNK):
        mine = tl.load(ids + start + lanes, mask=start + lanes < pairs, other=0x7FFFFFFF) == expert
        rank = tl.cumsum(mine.to(tl.int32), 0)
        tl.store(order + place + rank - 1, start + lanes, mask=mine)
        place += tl.sum(mine.to(tl.int32), 0)


def group_rows(ids: torch.Tensor, groups: ExpertGroups, *, experts: int) -> None:
    """Fill `groups` with the pairs of int32 ids [rows, chosen], contiguous.

    Pairs whose ids are `experts` or above are in no block. groups.blocks has `most_blocks` lines.
    """
    assert len(groups.blocks) == most_blocks(ids.numel(), experts, groups.tokens)
    launch(
        _group,
        (experts,),
        ids,
        groups.order,
        groups.blocks,
        ids.numel(),
        len(groups.blocks),
        TOKENS=groups.tokens,
        CHUNK=min(_CHUNK, int(next_power_of_2(ids.numel()))),
        WORDS=WORDS,
    )


def group_rows_reference(ids: torch.Tensor, groups: ExpertGroups, *, experts: int) -> None:
    """The same in torch."""
    pairs, tokens = ids.flatten().long(), groups.tokens
    groups.order.copy_(pairs.sort(stable=True).indices)
    own = torch.bincount(pairs, minlength=experts)[:experts]
    below = own.cumsum(0) - own
    groups.blocks.zero_()
    for expert in range(experts):
        start, count = int(below[expert]), int(own[expert])
        first_block = start // tokens + expert
        for block in range(first_block, (start + count) // tokens + expert + 1):
            first = (block - first_block) * tokens
            line = (expert, start + first, min(max(count - first, 0), tokens))
            groups.blocks[block] = torch.tensor(line, dtype=torch.int32)
