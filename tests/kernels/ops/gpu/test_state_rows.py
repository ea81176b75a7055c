"""States of committed rows, gathered by what a pass accepted."""

from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.state_rows import copy_states, copy_states_reference
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH

HIDDEN, BOUNDARIES, ROWS = 1040, 3, 24


@pytest.mark.parametrize("op", [copy_states, copy_states_reference])
@pytest.mark.parametrize("columns", [[0, 1, 2], [2, 0], [1]])
def test_rows_and_accepted_nodes_reach_their_places(device: torch.device, op, columns: list[int]) -> None:
    torch.manual_seed(0)
    states = torch.randn(ROWS, BOUNDARIES * HIDDEN, dtype=torch.bfloat16, device=device)
    result = torch.full((3, RESULT_WIDTH), 99, dtype=torch.int32, device=device)
    result[:, 0] = torch.tensor([2, 0, 3])
    result[0, 2:4] = torch.tensor([1, 4])
    result[2, 2:5] = torch.tensor([0, 2, 3])
    width = len(columns) * HIDDEN
    # Two rows of a prompt; an item with room for three nodes that took two; one that took none; one cut to two nodes.
    wanted = [(7, -1, 1), (8, -1, 1), (0, -1, 0), (0, 0, 0), (0, 1, 0), (0, 2, 0), (6, -1, 1), (6, 0, 1)]
    wanted += [(12, -1, 2), (12, 0, 2), (12, 1, 2)]
    sources = [7, 8, 0, 2, 5, None, 6, None, 12, 13, 15]
    places = [place * (width + 16) for place in torch.randperm(len(wanted)).tolist()]
    target = torch.full((len(wanted) * (width + 16),), 7.0, dtype=torch.bfloat16, device=device)
    expected = target.clone()
    for source, place in zip(sources, places, strict=True):
        if source is not None:
            expected[place : place + width] = states[source].unflatten(0, (BOUNDARIES, HIDDEN))[columns].flatten()
    rows = torch.tensor([(*row, place) for row, place in zip(wanted, places, strict=True)], device=device)
    op(states, result, rows, torch.tensor(columns, dtype=torch.int32, device=device), target, HIDDEN)
    assert torch.equal(target, expected)
