"""Lays out what a device finds of a pass that is queued before the one in front of it has decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.models.gpu.batch.pass_plan import CHOICE
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest


def device_choices(
    items: Sequence[ScheduledRequest], roots: Sequence[int], before: Mapping[RequestState, int]
) -> dict[str, NDArray[np.int32]]:
    """`choices`, `entries` and `entry_nodes` of a `PassPlan` whose deciding items are these in order.

    `roots` are the items' rows. A choice is of an item with a tree that is on the
    device alone, or of the root of an unresolved one.
    `before` has the places of requests among those that the step before decides.
    """
    choices: list[int] = []
    entries: list[int] = []
    nodes = 0
    for index, (item, row) in enumerate(zip(items, roots, strict=True)):
        tree, rows = item.tree, item.num_rows
        if isinstance(tree, DeviceTree):
            choices += (index, before[item.state], item.base - 1, row, rows, len(entries) // 4, 1, 0)
            entries += (0, 0, nodes, -1 - tree.row)
            nodes += rows - 1
        elif item.unresolved:
            choices += (index, before[item.state], item.first, row, 1, len(entries) // 4, 0, 0)
    return {
        "choices": np.array(choices, np.int32).reshape(-1, CHOICE),
        "entries": np.array(entries, np.int32).reshape(-1, 4),
        "entry_nodes": np.zeros((nodes, 4), np.int32),
    }
