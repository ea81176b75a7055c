"""Cuts drafted trees to what their request and the KV cache have room for."""

from __future__ import annotations

from slipstream_kernels.device_tree import DeviceTree, most_rows
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import truncated
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.scheduler.kv_cache_manager import KVCacheManager


def fit_tree(memory: KVCacheManager, item: ScheduledRequest, tree: TokenTree, room: int) -> TokenTree | None:
    """Return what of a tree fits its request, the pages, and `room` nodes; None if nothing does.

    Only a cut makes a device tree known to the host, for which it is waited for: tokens beyond a request's limit are
    cut from what the step decides instead. One behind a step that is not decided is not cut.
    """
    state, (nodes, depth) = item.state, most_rows(tree)
    base = item.base + state.max_inflight_drafts
    deepest = memory.max_context - base - 1 if isinstance(tree, DeviceTree) else state.depth_left
    rows, allowed = min(state.draft.max_nodes, 1 + room), min(depth, deepest)
    allowed = memory.grow_up_to(state, base + allowed) - base
    if allowed == depth and nodes < rows:
        return tree
    if item.unresolved:
        return None
    return truncated(tree, max_nodes=rows, max_depth=allowed)
