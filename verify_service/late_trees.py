"""Trees with which a step is launched before the host knows their nodes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.token_tree import TokenTree
from verify_service.scheduler import ScheduledRows

_log = logging.getLogger(__name__)


def take_all(items: Sequence[ScheduledRows]) -> bool:
    """Whether a step takes all nodes of its trees, be it that it has one request alone, whose rows are cheap."""
    fixed = not any(item.state.adaptive and item.state.proposer for item in items)
    return (fixed or len(items) == 1) and all(item.count == 1 for item in items)


def read_late(items: Sequence[ScheduledRows]) -> list[tuple[ScheduledRows, TokenTree]]:
    """Have the host know those trees of a launched step that only a device knew; waits for them. Returns which."""
    late: list[tuple[ScheduledRows, TokenTree]] = []
    for item in items:
        tree = item.tree
        if not isinstance(tree, DeviceTree):
            continue
        item.laid, item.tree = (tree.most_nodes, tree.most_depth), None
        try:
            item.tree = tree.read()
            late.append((item, item.tree))
        except Exception:  # noqa: BLE001 - what is accepted of it the device knows
            _log.exception("a tree cannot be read")
    return late
