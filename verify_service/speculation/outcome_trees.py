"""What of trees prepared for the ends of a step under way may be chosen by the step after it."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import match_path, truncated
from verify_service.core.draft_source import OutcomeTree
from verify_service.core.scheduled_request import OutcomeCandidate, ScheduledRequest
from verify_service.scheduler.kv_cache_manager import KVCacheManager


def fitting(
    memory: KVCacheManager, before: ScheduledRequest, prepared: Sequence[OutcomeTree], room: int
) -> tuple[OutcomeCandidate, ...]:
    """What of prepared trees fits the request, the pages, and `room` nodes, by the end that each supposes."""
    state, rows = before.state, min(before.state.max_nodes, 1 + room)
    nodes: dict[tuple[int, ...], int | None] = {(): -1}
    choices: list[OutcomeCandidate] = []
    for path, token, tree in prepared:
        if path not in nodes:
            nodes[path] = _end_of(path, before.tree)
        node, base = nodes[path], before.base + len(path) + 1
        depth = min(tree.depth, state.max_depth, state.max_length - base - 1)
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
