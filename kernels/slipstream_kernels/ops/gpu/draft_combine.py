"""Token trees of the likeliest combinations of tokens that do not depend on one another, in one pass.

Every level has the same children below all its nodes, as Medusa's heads score them (arXiv 2401.10774, section 2.3). So
the best children below a node are the level's best, and the whole tree is grown by taking the best candidate again and
again: a node that is taken puts its first child and its next sibling in its place. What is kept is what `Expansion`
keeps that expands every node: the best scores, of equals the earlier level, and there the earlier path.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.draft_top_k import MOST_WIDTH
from slipstream_kernels.ops.gpu.draft_trees import COUNT, LOG_PROBS, MOST_NODES, PARENTS, TREE_WIDTH, DraftTrees
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.token_tree import MAX_ROWS

MOST_LEVELS = 14
"""Of the longest path: a node's code has four bits for its rank at each level, and its depth above them."""

_NODES, _MOST, _TREE = tl.constexpr(MAX_ROWS), tl.constexpr(MOST_NODES), tl.constexpr(TREE_WIDTH)
_COUNT, _PARENTS, _LOG_PROBS = tl.constexpr(COUNT), tl.constexpr(PARENTS), tl.constexpr(LOG_PROBS)
_BITS, _RANKS = tl.constexpr((MOST_WIDTH - 1).bit_length()), tl.constexpr(MOST_WIDTH - 1)
_DEPTH = tl.constexpr(MOST_LEVELS * _BITS.value)
"""Bits of a code below its depth"""
_LEVEL = tl.constexpr(1 << _DEPTH.value)
"""Of a code: one level more"""
_NO_CODE = tl.constexpr(2**63 - 1)
_MINUS_INFINITY = tl.constexpr(float("-inf"))


@triton.jit
def _below(depth: tl.tensor) -> tl.tensor:
    """Bits of a code below the rank at `depth`."""
    return depth * -_BITS + _DEPTH


@triton.jit
def _rank_of(code: tl.tensor, depth: tl.tensor) -> tl.tensor:
    """The rank, among its siblings, of the node at `depth` on the path of a code."""
    return ((code >> _below(depth)) & _RANKS).to(tl.int32)


@triton.jit
def _score(places: tl.tensor, scores: tl.tensor, entry: tl.tensor, base: tl.tensor, there: tl.tensor) -> tl.tensor:
    """Of a candidate below a node of score `base`; minus infinity where there is none."""
    there &= tl.load(places + entry, mask=there, other=-1) >= 0
    gain = tl.load(scores + entry, mask=there, other=_MINUS_INFINITY)
    return base + tl.minimum(gain, 0.0)


@triton.jit(do_not_specialize=["levels"])
def _draft_combine(
    places: tl.tensor,
    scores: tl.tensor,
    log_probs: tl.tensor,
    limits: tl.tensor,
    vocabulary: tl.tensor,
    result: tl.tensor,
    levels: int,
    WIDTH: tl.constexpr,
    MAPPED: tl.constexpr,
) -> None:
    """One session a program. Candidates are held by slots; the i-th node that is taken puts its child into i + 1."""
    release_next()
    wait_for_previous()
    session = tl.program_id(0)
    budget = tl.minimum(tl.load(limits + session * 2), _MOST)
    deepest = tl.minimum(tl.load(limits + session * 2 + 1), levels)
    level_size = tl.num_programs(0) * WIDTH
    places += session * WIDTH
    scores += session * WIDTH
    log_probs += session * WIDTH
    result += session * _TREE

    slot = tl.arange(0, _NODES)
    wanted = (budget > 0) & (deepest > 0)
    first = _score(places, scores, session * 0, 0.0, wanted)
    score = tl.where(slot == 0, first, _MINUS_INFINITY)
    base = tl.zeros((_NODES,), tl.float32)
    code = tl.full((_NODES,), _LEVEL, tl.int64)
    taken = tl.full((_NODES,), _NO_CODE, tl.int64)
    for i in range(budget):
        best = tl.max(score, 0)
        own = tl.min(tl.where((score == best) & (score > _MINUS_INFINITY), code, _NO_CODE), 0)
        found = own != _NO_CODE
        chosen = (code == own) & (score > _MINUS_INFINITY)
        parent_score = tl.sum(tl.where(chosen, base, 0.0), 0)
        taken = tl.where(slot == i, own, taken)

        depth = tl.where(found, own >> _DEPTH, 1)
        rank = _rank_of(own, depth)
        entry = (depth.to(tl.int32) - 1) * level_size + rank
        sibling = _score(places, scores, entry + 1, parent_score, found & (rank + 1 < WIDTH))
        child = _score(places, scores, depth.to(tl.int32) * level_size, best, found & (depth < deepest))
        one = (depth * 0 + 1) << _below(depth)
        score = tl.where(chosen, sibling, tl.where(slot == i + 1, child, score))
        base = tl.where(slot == i + 1, best, base)
        code = tl.where(chosen, own + one, tl.where(slot == i + 1, own + _LEVEL, code))

    kept = taken != _NO_CODE
    depth = tl.where(kept, taken >> _DEPTH, 1)
    rank = _rank_of(taken, depth)
    node = tl.sum((taken[None, :] < taken[:, None]).to(tl.int32), 1)
    above = taken - _LEVEL - (rank.to(tl.int64) << _below(depth))
    parent = tl.where(depth > 1, tl.sum((taken[None, :] < above[:, None]).to(tl.int32), 1), -1)
    token = tl.load(places + (depth.to(tl.int32) - 1) * level_size + rank, mask=kept, other=0)
    if MAPPED:
        token = tl.load(vocabulary + token, mask=kept, other=0)
    log_prob = tl.zeros((_NODES,), tl.float32)
    for level in range(deepest):
        on_path = kept & (level < depth)
        step = level * level_size + _rank_of(taken, depth * 0 + level + 1)
        log_prob += tl.minimum(tl.load(log_probs + step, mask=on_path, other=0.0), 0.0)
    tl.store(result + node, token, mask=kept)
    tl.store(result + node + _PARENTS, parent, mask=kept)
    tl.store(result + node + _LOG_PROBS, log_prob.to(tl.int32, bitcast=True), mask=kept)
    tl.store(result + _COUNT, tl.sum(kept.to(tl.int32), 0))


def draft_combine(
    places: torch.Tensor,
    scores: torch.Tensor,
    log_probs: torch.Tensor,
    limits: torch.Tensor,
    vocabulary: torch.Tensor | None,
    trees: DraftTrees,
) -> None:
    """Make each session's whole tree of what its levels score.

    places, scores, log_probs [levels * sessions, width] as `draft_top_k` writes them, best first, those of the first
    level first; MOST_LEVELS at most. int32 limits [sessions, 2]: most drafted nodes, 0 for a session without a tree,
    and most levels. int32 vocabulary: the target's id of each place; None where they are the same. Writes
    `trees.result`, as `draft_expand` leaves it after the last level; `scores` and `frontier` are left alone.
    """
    sessions, width = len(limits), places.shape[1]
    levels = len(places) // sessions
    assert places.is_contiguous()
    assert scores.is_contiguous()
    assert log_probs.is_contiguous()
    assert 1 <= levels <= MOST_LEVELS
    assert len(places) == levels * sessions
    assert 1 <= width <= MOST_WIDTH
    launch(
        _draft_combine,
        (sessions,),
        places,
        scores,
        log_probs,
        limits,
        vocabulary,
        trees.result,
        levels,
        warps=1,
        WIDTH=width,
        MAPPED=vocabulary is not None,
    )


def draft_combine_reference(
    places: torch.Tensor,
    scores: torch.Tensor,
    log_probs: torch.Tensor,
    limits: torch.Tensor,
    vocabulary: torch.Tensor | None,
    trees: DraftTrees,
) -> None:
    """The same in torch, level by level."""
    by_level = [each.view(-1, len(limits), places.shape[1]) for each in (places, scores, log_probs)]
    for session, (budget, deepest) in enumerate(limits.tolist()):
        level_places, level_scores, level_logs = (each[:deepest, session].cpu() for each in by_level)
        nodes = _combined_reference(level_places, level_scores, min(budget, MOST_NODES))
        tree, numbers = trees.result[session], {path: number for number, path in enumerate(nodes)}
        tree[COUNT] = len(nodes)
        for path, number in numbers.items():
            place = level_places[len(path) - 1, path[-1]]
            tree[number] = place if vocabulary is None else vocabulary[int(place)]
            tree[PARENTS + number] = numbers.get(path[:-1], -1)
            log_prob = torch.zeros(())
            for level, rank in enumerate(path):
                log_prob = log_prob + level_logs[level, rank].clamp(max=0)
            tree[LOG_PROBS + number] = log_prob.view(torch.int32)


def _combined_reference(places: torch.Tensor, scores: torch.Tensor, budget: int) -> list[tuple[int, ...]]:
    """Paths of ranks of one session's nodes, level by level; places and scores [levels, width]."""
    kept: dict[tuple[int, ...], torch.Tensor] = {}
    frontier: list[tuple[int, ...]] = [()]
    for level in range(len(places)):
        for path in frontier:
            for rank in range(places.shape[1]):
                gain = scores[level, rank].clamp(max=0)
                if places[level, rank] >= 0 and gain > float("-inf"):
                    kept[*path, rank] = kept.get(path, torch.zeros(())) + gain
        best = set(sorted(kept, key=lambda path: (-float(kept[path]), len(path), path))[:budget])
        kept = {path: score for path, score in kept.items() if path in best}
        frontier = [path for path in kept if len(path) == level + 1]
    return list(kept)
