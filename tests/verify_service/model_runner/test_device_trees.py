"""Trees with which a step is launched before the host knows them."""

from __future__ import annotations

import pytest
import torch

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.model_runner.device_trees import copy_to_host, not_on_host, verifies_all_nodes

TREE = TokenTree.chain((5, 6))


class Trees:
    def queue(self) -> torch.Tensor:
        return torch.zeros(1, 1)

    def read(self, row: int) -> TokenTree:
        if row == 1:
            raise RuntimeError("the device is gone")
        return TREE if row == 0 else TokenTree((), ())


def rows(count: int = 1, *, adaptive: bool = False, proposer: str = "p") -> ScheduledRequest:
    state = admitted(EngineConfig(num_pages=64, adaptive=adaptive), range(10, 17))
    state.draft.proposer, state.kv.num_computed_tokens = proposer, len(state.tokens) - count
    return ScheduledRequest(state, count)


def test_the_step_keeps_the_room_that_it_was_launched_with():
    late, plain, gone, empty = rows(), rows(), rows(), rows()
    late.tree, plain.tree, gone.tree = DeviceTree(Trees(), 0, 9, 4), TREE, DeviceTree(Trees(), 1, 7, 3)
    empty.tree = DeviceTree(Trees(), 2, 5, 2)
    assert (late.num_rows, late.depth) == (10, 4)
    assert not_on_host([late, plain, gone, empty]) == [late, gone, empty]
    copy_to_host([late, gone, empty])
    assert (late.tree, plain.tree, gone.tree, empty.tree) == (TREE, TREE, None, None)
    assert (late.num_rows, late.depth) == (10, 4)
    assert (plain.num_rows, plain.depth) == (3, 2)
    assert (gone.num_rows, gone.depth) == (8, 3)
    assert (empty.num_rows, empty.depth) == (6, 2)
    assert not_on_host([late, plain, gone, empty]) == []


@pytest.mark.parametrize(
    ("items", "whole"),
    [
        ([rows(adaptive=True)], True),
        ([rows(), rows()], True),
        ([rows(), rows(adaptive=True)], False),
        ([rows(), rows(adaptive=True, proposer="")], True),
        ([rows(), rows(4)], False),
        ([rows(3, adaptive=True)], False),
    ],
    ids=["alone", "fixed", "chosen among", "plain beside", "a prompt beside", "a prompt"],
)
def test_whose_trees_are_taken_whole(items: list[ScheduledRequest], *, whole: bool):
    assert verifies_all_nodes(items) is whole
