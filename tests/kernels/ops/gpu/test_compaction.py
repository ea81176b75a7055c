from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.compaction import compact_kv, compact_kv_reference
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH

LAYERS, KV_HEADS, HEAD_DIM = 2, 2, 64
ACCEPTED = [[0, 2, 3], None, [], list(range(18)), [1]]
"""Accepted nodes by item; None is a padding item."""
NODES = [5, 0, 2, 20, 3]
ROOTS = [6, 0, 17, 3, 30]
"""Positions of the items' roots."""


class Case:
    """Items on lines 4, 3, ... whose rows follow two rows of a prompt and have scratch slots."""

    def __init__(self, page_size: int, device: torch.device) -> None:
        torch.manual_seed(page_size)
        self.device, self.page_size = device, page_size
        pages = -(-60 // page_size)
        self.page_table = torch.randperm(5 * pages, device=device).view(5, pages).to(torch.int32)
        page_slots = 5 * pages * page_size
        write_slots, logit_rows, deciding = [0, 1], [1], []
        self.result = torch.zeros(5, RESULT_WIDTH, dtype=torch.int32, device=device)
        for item, (nodes, root, accepted) in enumerate(zip(NODES, ROOTS, ACCEPTED, strict=True)):
            if accepted is None:
                deciding.append([0, 0, 0, 0])
                continue
            deciding.append([len(logit_rows), nodes + 1, 4 - item, root + 1])
            logit_rows += range(len(write_slots), len(write_slots) + nodes + 1)
            scratch = page_slots + len(write_slots)
            write_slots += [self.slot(4 - item, root), *range(scratch, scratch + nodes)]
            self.result[item, 0] = len(accepted)
            self.result[item, 2 : 2 + len(accepted)] = torch.tensor(accepted)
        self.num_slots = page_slots + len(write_slots) + 1
        self.write_slots, self.logit_rows, self.deciding = map(self.integers, (write_slots, logit_rows, deciding))

    def integers(self, values: list) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def slot(self, line: int, position: int) -> int:
        page = int(self.page_table[line, position // self.page_size])
        return page * self.page_size + position % self.page_size

    def store(self) -> torch.Tensor:
        shape = (LAYERS, KV_HEADS, self.num_slots, HEAD_DIM)
        return torch.randn(shape, dtype=torch.bfloat16, device=self.device)

    def row(self, item: int, place: int) -> int:
        return int(self.logit_rows[int(self.deciding[item, 0]) + place])


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("op", [compact_kv, compact_kv_reference])
def test_accepted_nodes_reach_their_positions(device, page_size: int, op) -> None:
    case = Case(page_size, device)
    keys, values = case.store(), case.store()
    expected = keys.clone(), values.clone()
    for item, accepted in enumerate(ACCEPTED):
        for order, node in enumerate(accepted or []):
            source = int(case.write_slots[case.row(item, 1 + node)])
            target = case.slot(4 - item, ROOTS[item] + 1 + order)
            for store in expected:
                store[:, :, target] = store[:, :, source]
    op(keys, values, case.result, case.deciding, case.logit_rows, case.write_slots, case.page_table, page_size)
    assert torch.equal(keys, expected[0]) and torch.equal(values, expected[1])
    keys, before = case.store(), values.clone()
    case.deciding[:, 1] = -1  # what is left out is left alone
    values = before.clone()
    op(keys, values, case.result, case.deciding, case.logit_rows, case.write_slots, case.page_table, page_size)
    assert torch.equal(values, before)
