"""Trees promised behind a step: who gets them, who is told, and when they are no longer good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted
from verify_service.core.draft_source import EnqueuedDrafts, EnqueuedRequest, NoDrafts
from verify_service.core.engine_config import EngineConfig
from verify_service.core.guarded_source import GuardedSource
from verify_service.core.request import RequestKey
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import DeviceStepResult
from verify_service.core.step_time_model import StepTimeModel
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.speculation.acceptance_model import AcceptanceModel
from verify_service.speculation.draft_latency import DraftLatency
from verify_service.speculation.goodput import GoodputOptimizer
from verify_service.speculation.node_selection import NodeSelector
from verify_service.speculation.on_device_trees import OnDeviceTrees
from verify_service.speculation.tree_fit import fit_tree

TREE = TokenTree.chain((5, 6, 7))
CONFIG = EngineConfig(num_pages=64, page_size=4, adaptive=True)
OUTCOME = DeviceStepResult(torch.zeros(4, 130, dtype=torch.int32), None, {})


class Round:
    """Trees of a round, which are counted as they are read."""

    def __init__(self) -> None:
        self.reads = 0

    def queue(self) -> torch.Tensor:
        return torch.zeros(1, 1)

    def read(self, row: int) -> TokenTree:
        self.reads += 1
        return TREE


class Drafter(NoDrafts):
    """Drafts for all but the requests in `without`."""

    def __init__(self) -> None:
        self.round = Round()
        self.without: set[RequestKey] = set()
        self.failing = False
        self.allowed: list[bool] = []
        self.waits: list[list[RequestKey]] = []

    def enqueue_draft(self, rows: Sequence[EnqueuedRequest], outcome: DeviceStepResult) -> EnqueuedDrafts:
        if self.failing:
            raise RuntimeError("no")
        trees = {row.key: DeviceTree(self.round, 0, 3, 3) for row in rows if row.key not in self.without}
        return EnqueuedDrafts((), trees)

    def allow_device_trees(self, allowed: bool) -> None:
        self.allowed.append(allowed)

    def observe_wait(self, keys: Sequence[RequestKey], seconds: float) -> None:
        self.waits.append(list(keys))


@pytest.fixture
def drafter() -> Drafter:
    return Drafter()


@pytest.fixture
def trees(drafter: Drafter) -> OnDeviceTrees:
    costs = StepTimeModel([(1, 0, 1.0), (1, 16, 1.5), (4, 0, 1.1)])
    acceptance = AcceptanceModel()
    latency = DraftLatency(GoodputOptimizer(costs, acceptance))
    return OnDeviceTrees(GuardedSource(drafter), latency, NodeSelector(costs, acceptance))


def decoding(count: int = 1) -> ScheduledRequest:
    state = admitted(CONFIG, range(10, 17))
    state.draft.proposer, state.kv.num_computed_tokens = "p", len(state.tokens) - count
    return ScheduledRequest(state, count)


def requests(count: int) -> list[ScheduledRequest]:
    items = [decoding() for _ in range(count)]
    for number, item in enumerate(items):
        item.state.key = RequestKey(0, number)
    return items


def enqueue(trees: OnDeviceTrees, items: Sequence[ScheduledRequest]) -> None:
    outcome = OUTCOME._replace(routes=dict.fromkeys(items, ()))
    trees.enqueue(items, {item.state.key for item in items}, outcome)


def test_what_is_promised_is_taken_once_and_told_once(trees: OnDeviceTrees, drafter: Drafter) -> None:
    items = requests(3)
    enqueue(trees, items)
    assert trees.suffice
    taken = trees.take(items[:2])
    assert [item for item, _ in taken] == items[:2]
    assert all(isinstance(tree, DeviceTree) for _, tree in taken)
    assert drafter.round.reads == 0
    assert not trees.suffice, "the third one's is for that step alone"
    assert trees.take(items) == []
    enqueue(trees, items)
    trees.take(items[:2])
    assert trees.untold() == [item.state.key for item in items[:2]]
    assert trees.untold() == []


def test_few_promises_do_not_hold_up_many_requests(trees: OnDeviceTrees, drafter: Drafter) -> None:
    items = requests(4)
    drafter.without = {items[0].state.key}
    enqueue(trees, items)
    assert trees.suffice
    drafter.without = {item.state.key for item in items[:2]}
    enqueue(trees, items)
    assert not trees.suffice
    drafter.without = set()
    enqueue(trees, items)
    trees.drop()
    assert not trees.suffice


def test_another_request_of_the_same_name_gets_nothing(trees: OnDeviceTrees) -> None:
    items = requests(2)
    enqueue(trees, items)
    assert [item for item, _ in trees.take([items[1], *requests(1)])] == [items[1]]
    enqueue(trees, items)
    items[0].decides = False
    assert [item for item, _ in trees.take(items)] == [items[1]]


def test_those_that_are_over_do_not_count(trees: OnDeviceTrees, drafter: Drafter) -> None:
    items = requests(4)
    drafter.without = {items[0].state.key}
    enqueue(trees, items)
    for item in items[1:]:
        item.state.finished = True
    assert not trees.suffice


def test_nobody_goes_without_a_tree_for_long(trees: OnDeviceTrees, drafter: Drafter) -> None:
    items = requests(4)
    drafter.without = {items[0].state.key}
    promised = 0
    enqueue(trees, items)
    while trees.suffice:
        promised += 1
        trees.take(items)
        enqueue(trees, items)
    assert 0 < promised < 10
    trees.drop()
    enqueue(trees, items)
    assert trees.suffice


def test_beside_a_prompt_trees_stay_on_the_device(trees: OnDeviceTrees, drafter: Drafter) -> None:
    *items, other = requests(3)
    enqueue(trees, items)
    taken = trees.take([*items, ScheduledRequest(other.state, 4)])
    assert [item for item, _ in taken] == items
    assert all(isinstance(tree, DeviceTree) for _, tree in taken) and not drafter.round.reads


def test_a_drafter_that_fails_promises_nothing(trees: OnDeviceTrees, drafter: Drafter) -> None:
    drafter.failing = True
    enqueue(trees, requests(2))
    assert not trees.suffice
    assert trees.take(requests(2)) == []


def test_the_host_learns_of_trees_and_what_of_them_pays(trees: OnDeviceTrees, drafter: Drafter) -> None:
    items = requests(2)
    enqueue(trees, items)
    for item, tree in trees.take(items):
        item.tree = tree
    assert trees.read(items)
    assert [item.tree for item in items] == [TREE, TREE]
    assert drafter.waits == []
    assert trees.untold() == [item.state.key for item in items]
    trees.tell_wait()
    trees.tell_wait()
    assert drafter.waits == [[item.state.key for item in items]]
    assert all(item.profitable_nodes is not None and 0 <= item.profitable_nodes <= 3 for item in items)
    assert not trees.read(items)


def test_a_tree_may_reach_beyond_the_output_but_not_the_context() -> None:
    item = decoding()
    item.state.parameters = replace(item.state.parameters, max_length=len(item.state.tokens) + 2)
    round_ = Round()
    tree = DeviceTree(round_, 0, 3, 3)
    roomy = KVCacheManager(CONFIG, 64)
    assert roomy.grow(item.state, 0)
    item.state.kv.req_index = 0
    assert item.state.depth_left == 1
    assert fit_tree(roomy, item, tree, 8) is tree
    assert round_.reads == 0
    cut = fit_tree(roomy, item, TREE, 8)
    assert cut is not None
    assert cut.depth == 1
    tight = KVCacheManager(CONFIG, item.base + 3)
    cut = fit_tree(tight, item, tree, 8)
    assert cut is not None
    assert (cut.depth, round_.reads > 0) == (2, True)
