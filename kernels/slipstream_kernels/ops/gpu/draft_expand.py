"""Growing token trees level by level on the device, keeping the best nodes and choosing which to expand.

EAGLE-2 (arXiv 2406.16858, section 4): a node's score is the logarithm of its path's estimated probability of being
accepted; at each level the best nodes are expanded, and the best of all nodes ever seen are kept. A child never beats
its parent and the earlier of equals comes first, so a node once dropped, and all below it, would not be kept later.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.draft_trees import (
    COUNT,
    LOG_PROBS,
    MOST_NODES,
    PARENTS,
    TREE_WIDTH,
    DraftTrees,
    FrontierRows,
)
from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.preference_keys import preference_key
from slipstream_kernels.token_tree import MAX_ROWS

_MINUS_INFINITY = tl.constexpr(float("-inf"))
_NODES, _MOST = tl.constexpr(MAX_ROWS), tl.constexpr(MOST_NODES)
_TREE, _COUNT = tl.constexpr(TREE_WIDTH), tl.constexpr(COUNT)
_PARENTS, _LOG_PROBS = tl.constexpr(PARENTS), tl.constexpr(LOG_PROBS)


@triton.jit
def _better(keys: tl.tensor, others: tl.tensor) -> tl.tensor:
    """How many of the others come before each, int32."""
    return tl.sum((others[None, :] > keys[:, None]).to(tl.int32), 1)


@triton.jit
def _candidates(
    places: tl.tensor,
    scores: tl.tensor,
    log_probs: tl.tensor,
    tree: tl.tensor,
    tree_scores: tl.tensor,
    frontier: tl.tensor,
    wanted: tl.tensor,
    WIDTH: tl.constexpr,
    CANDIDATES: tl.constexpr,
    FIRST: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Places, parents, scores and log-probabilities of a session's new nodes, the scores minus infinity for none."""
    candidate = tl.arange(0, CANDIDATES)
    if FIRST:
        there = (candidate < WIDTH) & wanted
        parent = tl.full((CANDIDATES,), -1, tl.int32)
    else:
        there = (candidate < WIDTH * WIDTH) & wanted
        parent = tl.load(frontier + candidate // WIDTH, mask=there, other=-1)
        there &= parent >= 0
    place = tl.load(places + candidate, mask=there, other=-1)
    there &= place >= 0
    score = tl.minimum(tl.load(scores + candidate, mask=there, other=0.0), 0.0)
    log_prob = tl.minimum(tl.load(log_probs + candidate, mask=there, other=0.0), 0.0)
    if not FIRST:
        score += tl.load(tree_scores + parent, mask=there, other=0.0)
        path = tl.load(tree + parent + _LOG_PROBS, mask=there, other=0)
        log_prob += path.to(tl.float32, bitcast=True)
    return place, parent, tl.where(there, score, _MINUS_INFINITY), log_prob


@triton.jit
def _store_nodes(
    tree: tl.tensor,
    tree_scores: tl.tensor,
    node: tl.tensor,
    kept: tl.tensor,
    token: tl.tensor,
    parent: tl.tensor,
    score: tl.tensor,
    log_prob: tl.tensor,
) -> None:
    tl.store(tree + node, token, mask=kept)
    tl.store(tree + node + _PARENTS, parent, mask=kept)
    tl.store(tree + node + _LOG_PROBS, log_prob.to(tl.int32, bitcast=True), mask=kept)
    tl.store(tree_scores + node, score, mask=kept)


@triton.jit
def _store_frontier(
    chosen: tl.tensor,
    node: tl.tensor,
    token: tl.tensor,
    place: tl.tensor,
    frontier: tl.tensor,
    scored_paths: tl.tensor,
    token_ids: tl.tensor,
    next_places: tl.tensor,
    parent_rows: tl.tensor,
    logit_rows: tl.tensor,
    paths: tl.tensor,
    level: int,
    first_row: int,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    FIRST: tl.constexpr,
) -> None:
    """Rows of the candidates chosen, in their order, then rows without a node. ROWS: a power of two from WIDTH on."""
    session = tl.program_id(0)
    candidate = tl.arange(0, CANDIDATES)
    slot = tl.arange(0, ROWS)
    mine = chosen[None, :] & ((tl.cumsum(chosen.to(tl.int32), 0) - 1)[None, :] == slot[:, None])
    there = slot < tl.sum(chosen.to(tl.int32), 0)
    own = slot < WIDTH
    row = session * WIDTH + slot
    parent_row = tl.zeros((ROWS,), tl.int32) + session
    if not FIRST:
        parent_row = session * WIDTH + tl.sum(tl.where(mine, (candidate // WIDTH)[None, :], 0), 1)
    tl.store(frontier + slot, tl.where(there, tl.sum(tl.where(mine, node[None, :], 0), 1), -1), mask=own)
    tl.store(token_ids + row, tl.sum(tl.where(mine, token[None, :], 0), 1), mask=own)
    tl.store(next_places + row, tl.sum(tl.where(mine, place[None, :], 0), 1), mask=own)
    tl.store(parent_rows + row, parent_row, mask=own)
    tl.store(logit_rows + row, tl.where(there, row, -1), mask=own)

    step = tl.arange(0, _NODES)
    path = (first_row + row)[:, None] + tl.zeros((ROWS, _NODES), tl.int32)
    if not FIRST:
        above = there[:, None] & (step < level - 1)[None, :]
        ancestors = tl.load(scored_paths + parent_row[:, None] * _NODES + step[None, :], mask=above, other=0)
        path = tl.where(above, ancestors, path)
    tl.store(paths + row[:, None] * _NODES + step[None, :], path, mask=own[:, None])


@triton.jit(do_not_specialize=["level", "first_row"])
def _draft_expand(
    places: tl.tensor,
    scores: tl.tensor,
    log_probs: tl.tensor,
    scored_paths: tl.tensor,
    limits: tl.tensor,
    vocabulary: tl.tensor,
    result: tl.tensor,
    tree_scores: tl.tensor,
    frontier: tl.tensor,
    token_ids: tl.tensor,
    next_places: tl.tensor,
    parent_rows: tl.tensor,
    logit_rows: tl.tensor,
    paths: tl.tensor,
    level: int,
    first_row: int,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    MAPPED: tl.constexpr,
    FIRST: tl.constexpr,
    LAST: tl.constexpr,
) -> None:
    """One session a program. All is read before anything is written."""
    release_next()
    wait_for_previous()
    session = tl.program_id(0)
    budget = tl.minimum(tl.load(limits + session * 2), _MOST)
    deepest = tl.load(limits + session * 2 + 1)
    result += session * _TREE
    tree_scores += session * _NODES
    frontier += session * WIDTH
    first = session * (WIDTH if FIRST else WIDTH * WIDTH)

    place, parent, score, log_prob = _candidates(
        places + first, scores + first, log_probs + first, result, tree_scores, frontier,
        (level <= deepest) & (budget > 0), WIDTH, CANDIDATES, FIRST,
    )  # fmt: skip
    there = score > _MINUS_INFINITY
    token = place
    if MAPPED:
        token = tl.load(vocabulary + place, mask=there, other=0)
    candidate = tl.arange(0, CANDIDATES)
    key = preference_key(there, score, candidate + _NODES)
    level_rank = _better(key, key)
    rank = level_rank
    nodes = 0
    if not FIRST:
        old = tl.arange(0, _NODES)
        held = old < tl.load(result + _COUNT)
        old_score = tl.load(tree_scores + old, mask=held, other=_MINUS_INFINITY)
        old_token = tl.load(result + old, mask=held, other=0)
        old_parent = tl.load(result + old + _PARENTS, mask=held, other=-1)
        old_log_prob = tl.load(result + old + _LOG_PROBS, mask=held, other=0).to(tl.float32, bitcast=True)
        old_key = preference_key(held, old_score, old)
        rank += _better(key, old_key)
        old_kept = held & (_better(old_key, old_key) + _better(old_key, key) < budget)
        old_node = tl.cumsum(old_kept.to(tl.int32), 0) - 1
        nodes = tl.sum(old_kept.to(tl.int32), 0)
        moved = tl.where(old[None, :] == old_parent[:, None], old_node[None, :], 0)
        old_parent = tl.where(old_parent < 0, -1, tl.sum(moved, 1))
        parent = tl.sum(tl.where(old[None, :] == parent[:, None], old_node[None, :], 0), 1)
    kept = there & (rank < budget)
    node = nodes + tl.cumsum(kept.to(tl.int32), 0) - 1

    tl.debug_barrier()
    if not FIRST:
        _store_nodes(result, tree_scores, old_node, old_kept, old_token, old_parent, old_score, old_log_prob)
    _store_nodes(result, tree_scores, node, kept, token, parent, score, log_prob)
    tl.store(result + _COUNT, nodes + tl.sum(kept.to(tl.int32), 0))
    if not LAST:
        chosen = kept & (level_rank < WIDTH) & (level < deepest)
        _store_frontier(
            chosen, node, token, place, frontier, scored_paths, token_ids, next_places, parent_rows, logit_rows, paths,
            level, first_row, WIDTH, ROWS, CANDIDATES, FIRST,
        )  # fmt: skip


def draft_expand(
    places: torch.Tensor,
    scores: torch.Tensor,
    log_probs: torch.Tensor,
    scored: FrontierRows | None,
    limits: torch.Tensor,
    level: int,
    vocabulary: torch.Tensor | None,
    trees: DraftTrees,
    following: FrontierRows | None,
) -> None:
    """Add level `level`, from 1, to the trees, keep each one's best nodes, and choose those to expand next.

    places, scores, log_probs [rows, width] as `draft_top_k` writes them: at level 1 a row a session, else the rows
    `scored`. int32 limits [sessions, 2]: most drafted nodes, 0 for a session without a tree, and most levels.
    int32 vocabulary: the target's id of each place; None where they are the same.
    `trees` start anew at level 1, and are finished after the last. `following`, the rows of depth `level`, is written
    whole: the `width` best of the level's nodes that are kept, in the order of their parents; None at the last level.
    """
    sessions, width = trees.frontier.shape
    first, last = scored is None, following is None
    assert first == (level == 1)
    assert places.is_contiguous()
    assert len(places) == (sessions if scored is None else len(scored.token_ids))
    candidates = triton.next_power_of_2(width if first else width * width)
    launch(
        _draft_expand,
        (sessions,),
        places,
        scores,
        log_probs,
        None if scored is None else scored.paths,
        limits,
        vocabulary,
        trees.result,
        trees.scores,
        trees.frontier,
        *((None,) * 5 if following is None else _outputs(following)),
        level,
        0 if following is None else following.first_row,
        warps=8 if candidates >= 64 else 4,
        WIDTH=width,
        ROWS=triton.next_power_of_2(width),
        CANDIDATES=max(candidates, 16),
        MAPPED=vocabulary is not None,
        FIRST=first,
        LAST=last,
    )


def _outputs(rows: FrontierRows) -> tuple[torch.Tensor, ...]:
    return rows.token_ids, rows.places, rows.parent_rows, rows.logit_rows, rows.paths


def draft_expand_reference(
    places: torch.Tensor,
    scores: torch.Tensor,
    log_probs: torch.Tensor,
    scored: FrontierRows | None,
    limits: torch.Tensor,
    level: int,
    vocabulary: torch.Tensor | None,
    trees: DraftTrees,
    following: FrontierRows | None,
) -> None:
    """The same in torch."""
    if following is not None:
        for tensor, nothing in zip(_outputs(following), (0, 0, 0, -1), strict=False):
            tensor.fill_(nothing)
    for session in range(len(trees.frontier)):
        found = [each.view(len(trees.frontier), -1)[session] for each in (places, scores, log_probs)]
        chosen = _grow_reference(found, limits[session].tolist(), level, vocabulary, trees, session)
        if following is not None:
            _follow_reference(chosen, found[0], vocabulary, scored, following, session, level, trees.frontier.shape[1])


def _grow_reference(
    found: list[torch.Tensor],
    limits: list[int],
    level: int,
    vocabulary: torch.Tensor | None,
    trees: DraftTrees,
    session: int,
) -> list[int]:
    """Grow one tree; returns which candidates are to be expanded next."""
    (places, gains, logs), (budget, deepest) = found, limits
    tree, frontier = trees.result[session], trees.frontier[session]
    count = int(tree[COUNT]) if level > 1 else 0
    old_scores, old_logs = trees.scores[session, :count], tree[LOG_PROBS : LOG_PROBS + count].view(torch.float32)
    root = old_scores.new_zeros(1)
    parents = frontier.repeat_interleave(len(frontier)) if level > 1 else frontier * 0 - 1
    new_scores = torch.cat([old_scores, root])[parents.long()] + gains.clamp(max=0)
    new_logs = torch.cat([old_logs, root])[parents.long()] + logs.clamp(max=0)
    there = (places >= 0) & (new_scores > float("-inf")) & ((parents >= 0) | (level == 1)) & (level <= deepest)
    candidates = there.nonzero()[:, 0]
    places, parents, new_scores, new_logs = (each[candidates] for each in (places, parents, new_scores, new_logs))

    all_scores = torch.cat([old_scores, new_scores])
    kept = torch.zeros(len(all_scores), dtype=torch.bool, device=places.device)
    kept[all_scores.argsort(descending=True, stable=True)[: min(budget, MOST_NODES)]] = True
    node = kept.cumsum(0, dtype=torch.int32) - 1
    parents = torch.cat([tree[PARENTS : PARENTS + count], parents])
    moved = torch.where(parents < 0, -1, node[parents.long()])
    tokens = torch.cat([tree[:count], places if vocabulary is None else vocabulary[places.long()]])
    all_logs = torch.cat([old_logs, new_logs]).view(torch.int32)
    kept_count = int(kept.sum())
    for first, values in ((0, tokens), (PARENTS, moved), (LOG_PROBS, all_logs)):
        tree[first : first + kept_count] = values[kept]
    tree[COUNT] = kept_count
    trees.scores[session, :kept_count] = all_scores[kept]

    best = new_scores.argsort(descending=True, stable=True)[: len(frontier)].sort().values + count
    best = best[kept[best]] if level < deepest else best[:0]
    frontier.fill_(-1)
    frontier[: len(best)] = node[best]
    return [int(candidate) for candidate in candidates[best - count]]


def _follow_reference(
    chosen: list[int],
    places: torch.Tensor,
    vocabulary: torch.Tensor | None,
    scored: FrontierRows | None,
    following: FrontierRows,
    session: int,
    level: int,
    width: int,
) -> None:
    """Write the rows of one session's candidates `chosen`, and of none behind them."""
    first = session * width
    for row in range(first, first + width):
        following.parent_rows[row] = session if scored is None else first
        following.paths[row] = following.first_row + row
    for row, candidate in enumerate(chosen, first):
        place = places[candidate]
        following.token_ids[row] = place if vocabulary is None else vocabulary[place]
        following.places[row] = place
        following.logit_rows[row] = row
        if scored is not None:
            following.parent_rows[row] = parent = first + candidate // width
            following.paths[row, : level - 1] = scored.paths[parent, : level - 1]
