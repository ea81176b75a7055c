"""Cuts drafted trees to what their request and the KV cache have room for."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_kernels.device_tree import DeviceTree, most_rows
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import match_path, truncated
from verify_service.core.draft_source import OutcomeTree
from verify_service.core.scheduled_request import OutcomeCandidate, ScheduledRequest
from verify_service.scheduler.kv_cache_manager import KVCacheManager


def fit_tree(memory: KVCacheManager, item: ScheduledRequest, tree: TokenTree, room: int) -> TokenTree | None:
    """Return what of a tree fits its request, the pages, and `room` nodes; None if nothing does.

    Only a cut makes a device tree known to the host, for which it is waited for: tokens beyond a request's limit are
    cut from what the step decides instead.
    """
    state, base, (nodes, depth) = item.state, item.base, most_rows(tree)
    deepest = memory.max_context - base - 1 if isinstance(tree, DeviceTree) else state.depth_left
    rows, allowed = min(state.draft.max_nodes, 1 + room), min(depth, deepest)
    allowed = memory.grow_up_to(state, base + allowed) - base
    if allowed == depth and nodes < rows:
        return tree
    return truncated(tree, max_nodes=rows, max_depth=allowed)


def fit_outcome_trees(
    memory: KVCacheManager, before: ScheduledRequest, prepared: Sequence[OutcomeTree], room: int
) -> tuple[OutcomeCandidate, ...]:
    """Return what of trees prepared for the ends of a step under way fits its request, the pages, and `room` nodes."""
    state, rows = before.state, min(before.state.draft.max_nodes, 1 + room)
    nodes: dict[tuple[int, ...], int | None] = {(): -1}
    choices: list[OutcomeCandidate] = []
    for path, token, tree in prepared:
        if path not in nodes:
            nodes[path] = _end_of(path, before.tree)
        node, base = nodes[path], before.base + len(path) + 1
        depth = min(tree.depth, state.draft.max_depth, state.parameters.max_length - base - 1)
        if node is None or depth < 1:
            continue
        depth = memory.grow_up_to(state, base + depth) - base
        part = tree if depth == tree.depth and len(tree) < rows else truncated(tree, max_nodes=rows, max_depth=depth)
        if part is not None:
            choices.append(OutcomeCandidate(node, token, part))
    return tuple(choices)


def _end_of(path: tuple[int, ...], tree: TokenTree | None) -> int | None:
    """The node of a tree at which these tokens below the root end; None where they leave it."""
    node, count = (-1, 0) if tree is None else match_path(tree, path)
    return node if count == len(path) else None
