"""Trees with which a step is launched before the host knows their nodes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.scheduled_request import ScheduledRequest

_log = logging.getLogger(__name__)


def verifies_all_nodes(items: Sequence[ScheduledRequest]) -> bool:
    """Whether a step takes all nodes of its trees, be it that it has one request alone, whose rows are cheap."""
    fixed = not any(item.state.draft.adaptive and item.state.draft.proposer for item in items)
    return (fixed or len(items) == 1) and all(item.count == 1 for item in items)


def not_on_host(items: Sequence[ScheduledRequest]) -> list[ScheduledRequest]:
    """Those of a step's rows whose trees only a device knows."""
    return [item for item in items if isinstance(item.tree, DeviceTree)]


def copy_to_host(items: Sequence[ScheduledRequest]) -> None:
    """Have the host know the trees, which only a device knew, of a step that is launched; waits for them."""
    for item in items:
        tree = item.tree
        assert isinstance(tree, DeviceTree)
        item.know(read_tree(tree))


def read_tree(tree: DeviceTree) -> TokenTree | None:
    """What the host gets to know of a tree; None where it is empty, or cannot be read. Waits for it."""
    try:
        return tree.read() or None
    except Exception:  # noqa: BLE001 - what of it is accepted the device knows
        _log.exception("a tree cannot be read")
        return None
