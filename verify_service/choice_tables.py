"""Lays trees that a device chooses from out for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.models.gpu.pass_plan import CHOICE
from verify_service.request_state import RequestState
from verify_service.scheduler import ScheduledRows


def choice_tables(items: Sequence[ScheduledRows], before: Mapping[RequestState, int]) -> dict[str, NDArray[np.int32]]:
    """`choices`, `entries` and `entry_nodes` of a `PassPlan` whose items, all of which decide, are these in order.

    `before` has the places of requests among those that the step before decides.
    """
    choices: list[int] = []
    entries: list[int] = []
    nodes: list[int] = []
    row = 0
    for index, item in enumerate(items):
        rows = item.room
        if item.choices is not None:
            choices += (index, before[item.state], item.first, row, rows, len(entries) // 4, len(item.choices), 0)
            for node, token, tree in item.choices:
                entries += (node, token, len(nodes) // 4, len(tree))
                for each in zip(tree.token_ids, tree.parents, tree.depths, strict=True):
                    nodes += (*each, 0)
        row += rows
    columns = {"choices": (choices, CHOICE), "entries": (entries, 4), "entry_nodes": (nodes, 4)}
    return {name: np.fromiter(flat, np.int32, len(flat)).reshape(-1, width) for name, (flat, width) in columns.items()}
