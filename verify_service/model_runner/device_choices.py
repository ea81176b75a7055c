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
) -> NDArray[np.int32]:
    """`choices` of a `PassPlan` whose deciding items are these in order.

    A choice is of an item with a tree that is on the device alone, or of the root of an unresolved one. `roots` are the
    items' rows. `before` has the places of requests among those that the step before decides.
    """
    choices: list[int] = []
    nodes = 0
    for index, (item, row) in enumerate(zip(items, roots, strict=True)):
        tree, rows = item.tree, item.num_rows
        if isinstance(tree, DeviceTree):
            choices += (index, before[item.state], item.base - 1, row, rows, nodes, -1 - tree.row, 0)
            nodes += rows - 1
        elif item.unresolved:
            choices += (index, before[item.state], item.first, row, 1, 0, 0, 0)
    return np.array(choices, np.int32).reshape(-1, CHOICE)
