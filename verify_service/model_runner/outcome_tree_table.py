"""Lays trees that a device chooses from out for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.models.gpu.batch.pass_plan import CHOICE
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest


def outcome_tree_table(
    items: Sequence[ScheduledRequest], roots: Sequence[int], before: Mapping[RequestState, int]
) -> dict[str, NDArray[np.int32]]:
    """`choices`, `entries` and `entry_nodes` of a `PassPlan` whose deciding items are these in order.

    `roots` are the items' rows. A tree that is on the device alone is a choice of one. `before` has the places of
    requests among those that the step before decides.
    """
    if all(isinstance(item.tree, DeviceTree) for item in items):
        return _on_device(items, roots, before)
    choices: list[int] = []
    entries: list[int] = []
    token_ids: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    for index, (item, row) in enumerate(zip(items, roots, strict=True)):
        rows = item.max_rows
        drafted = item.tree
        if isinstance(drafted, DeviceTree):
            choices += (index, before[item.state], item.base - 1, row, rows, len(entries) // 4, 1, 0)
            entries += (0, 0, len(token_ids), -1 - drafted.row)
            room = [0] * drafted.most_nodes
            token_ids += room
            parents += room
            depths += room
        elif item.outcome_trees is not None:
            choices += (index, before[item.state], item.first, row, rows, len(entries) // 4, len(item.outcome_trees), 0)
            for node, token, tree in item.outcome_trees:
                entries += (node, token, len(token_ids), len(tree.token_ids))
                token_ids += tree.token_ids
                parents += tree.parents
                depths += tree.depths
    nodes = np.zeros((len(token_ids), 4), np.int32)
    for column, values in enumerate((token_ids, parents, depths)):
        nodes[:, column] = values
    return {
        "choices": np.fromiter(choices, np.int32, len(choices)).reshape(-1, CHOICE),
        "entries": np.fromiter(entries, np.int32, len(entries)).reshape(-1, 4),
        "entry_nodes": nodes,
    }


def _on_device(
    items: Sequence[ScheduledRequest], roots: Sequence[int], before: Mapping[RequestState, int]
) -> dict[str, NDArray[np.int32]]:
    """The same of items all of whose trees are on the device alone."""
    choices: list[int] = []
    entries: list[int] = []
    nodes = 0
    for index, (item, row) in enumerate(zip(items, roots, strict=True)):
        tree, rows = item.tree, item.num_rows
        assert isinstance(tree, DeviceTree)
        choices += (index, before[item.state], item.base - 1, row, rows, index, 1, 0)
        entries += (0, 0, nodes, -1 - tree.row)
        nodes += rows - 1
    return {
        "choices": np.array(choices, np.int32).reshape(-1, CHOICE),
        "entries": np.array(entries, np.int32).reshape(-1, 4),
        "entry_nodes": np.zeros((nodes, 4), np.int32),
    }
