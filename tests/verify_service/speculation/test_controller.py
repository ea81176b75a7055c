"""Trees enter a step within the request's budget, its remaining length and free memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.token_tree import TokenTree
from support.fixed_trees import Fixed, Listener, decoding
from support.verify_loop import admitted
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.engine_config import EngineConfig
from verify_service.core.guarded_source import GuardedSource
from verify_service.core.request import RequestKey
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import VerifyResult
from verify_service.core.step_time_model import StepTimeModel
from verify_service.hidden_states.rows import HiddenStateRows
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.speculation.acceptance_model import AcceptanceModel
from verify_service.speculation.controller import SpeculationController
from verify_service.speculation.goodput import GoodputOptimizer


def drafting_of(
    trees: Fixed, memory: KVCacheManager, config: EngineConfig, costs: StepTimeModel | None = None
) -> SpeculationController:
    budget = GoodputOptimizer(costs or StepTimeModel([(1, 1, 1e-3)]), AcceptanceModel())
    return SpeculationController(GuardedSource(trees), memory, config, budget)


def attach(
    tree: TokenTree | None, *, max_nodes: int = 64, max_tokens: int = 100, pages_left: int = 62
) -> ScheduledRequest:
    config = EngineConfig(num_pages=64, page_size=4, max_nodes=max_nodes)
    memory = KVCacheManager(config, 512)
    trees = Fixed(tree)
    state = decoding(config, memory, trees, max_tokens)
    memory._pool.allocate(62 - pages_left)
    item = ScheduledRequest(state, 1)
    drafting_of(trees, memory, config).attach_trees([item])
    assert trees.asked == [state.key]
    assert not state.draft.awaiting_tree
    assert len(state.kv.pages) * 4 >= len(state.tokens) + (item.tree.depth if item.tree is not None else 0)
    return item


def test_a_fitting_tree_is_taken_whole() -> None:
    tree = TokenTree((1, 2, 3), (-1, 0, -1))
    assert attach(tree).tree is tree


class Unread:
    """A tree of a device."""

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree

    def queue(self) -> torch.Tensor:
        raise NotImplementedError

    def read(self, row: int) -> TokenTree:
        return self.tree


class Told(Fixed):
    """A drafter on the device that notes the waits for its trees."""

    def __init__(self, tree: TokenTree) -> None:
        super().__init__(tree)
        self.waits: list[list[RequestKey]] = []

    def allow_device_trees(self, allowed: bool) -> None:
        assert allowed

    def observe_wait(self, keys: list[RequestKey], seconds: float) -> None:
        assert seconds >= 0.0
        self.waits.append(keys)


@pytest.mark.parametrize("count", [0, 3])
def test_what_a_device_drafted_for_one_request_is_learnt_from_once_it_is_read(count: int) -> None:
    config = EngineConfig(num_pages=64, page_size=4)
    memory = KVCacheManager(config, 512)
    tree = TokenTree.chain(tuple(range(count)))
    source = Told(DeviceTree(Unread(tree), 0, 6, 4))
    budget = GoodputOptimizer(StepTimeModel([(1, 1, 1e-3), (1, 64, 2e-3)]), AcceptanceModel())
    drafting = SpeculationController(source, memory, config, budget)
    state = decoding(config, memory, source)
    item = ScheduledRequest(state, 1)
    drafting.attach_trees([item])
    drafting.observe_step([], 1, 0, 1e-3)
    assert not budget.draft_time._uses, "the wait is not over"
    assert drafting.read([item])
    assert source.waits == [[state.key]]
    assert (item.tree, item.profitable_nodes is None) == (tree or None, count == 0)
    drafting.settle_wait(None, 1)
    drafting.observe_step([VerifyResult(item, AcceptedPath((), (3,)), 0)], 1, 6, 1e-3)
    assert sum(budget.draft_time._uses.values()) == 1
    assert state.draft.acceptance.tried == (1 if count else 0)


def test_no_tree_and_an_empty_tree_mean_a_plain_step() -> None:
    assert attach(None).tree is None
    assert attach(TokenTree((), ())).tree is None


def test_depth_is_cut_at_the_last_token_that_could_be_output() -> None:
    chain = TokenTree.chain(range(1, 11))
    assert attach(chain, max_tokens=4).tree == TokenTree.chain([1, 2, 3])
    assert attach(chain, max_tokens=1).tree is None


def test_depth_is_cut_where_pages_end() -> None:
    chain = TokenTree.chain(range(1, 11))
    assert attach(chain, pages_left=1).tree == TokenTree.chain([1, 2, 3, 4, 5])
    assert attach(chain, pages_left=0).tree == TokenTree.chain([1])


def test_nodes_are_cut_at_the_budget() -> None:
    wide = TokenTree(tuple(range(1, 11)), (-1,) * 10)
    tree = attach(wide, max_nodes=4).tree
    assert tree == TokenTree((1, 2, 3), (-1,) * 3)


def test_only_who_decides_and_asked_is_served() -> None:
    config = EngineConfig(num_pages=64, page_size=4)
    memory = KVCacheManager(config, 512)
    trees = Fixed(TokenTree.chain([1]))
    state = decoding(config, memory, trees)
    state.kv.num_computed_tokens = 2
    drafting = drafting_of(trees, memory, config)
    drafting.attach_trees([ScheduledRequest(state, 3)])
    assert trees.asked == []
    assert state.draft.awaiting_tree
    resumed = ScheduledRequest(state, 5)
    drafting.attach_trees([resumed])
    assert trees.asked == [state.key]
    assert resumed.tree is not None


@pytest.mark.parametrize("adaptive", [True, False])
def test_trees_are_not_waited_for_beside_a_crowd_for_which_none_pay(adaptive: bool) -> None:
    """One that insists is served all the same."""
    costs = StepTimeModel([(1, 1, 1e-3), (1, 65, 1e-3), (64, 64, 2e-3), (64, 128, 2e-1)])
    config = EngineConfig(num_pages=640, page_size=4, adaptive=adaptive)
    memory, trees = KVCacheManager(config, 512), Fixed(TokenTree.chain([1, 2]))
    drafting = drafting_of(trees, memory, config, costs)
    state = decoding(config, memory, trees)
    drafting.send_commits([(state, (1,))], 1)
    assert state.draft.awaiting_tree
    drafting.begin(admitted(config, range(10, 17), request_id=1, trees=trees), expected=64)
    item = ScheduledRequest(state, 1)
    drafting.attach_trees([item])
    assert not state.draft.awaiting_tree
    assert trees.asked == ([] if adaptive else [state.key]) and (item.tree is None) == adaptive
    drafting.send_commits([(state, (1,))], 1)
    state.draft.awaiting_tree = True
    drafting.attach_trees([ScheduledRequest(state, 1)])
    assert trees.asked[-1:] == [state.key]


def test_a_fixed_request_is_granted_its_budget_or_its_share() -> None:
    trees = Listener()
    config = EngineConfig(num_pages=64, page_size=4, step_nodes=32, adaptive=False)
    memory = KVCacheManager(config, 512)
    state = decoding(config, memory, trees, max_tokens=10)
    drafting = drafting_of(trees, memory, config)
    for running, nodes, depth in ((1, 33, 9), (8, 5, 9), (33, 1, 0)):
        drafting.send_commits([(state, (1,))], running)
        assert (trees.told[-1].max_nodes, trees.told[-1].max_depth) == (nodes, depth)
        assert state.draft.awaiting_tree == (depth > 0)
    state.draft.proposer = ""
    drafting.send_commits([(state, (1,))], 1)
    assert len(trees.told) == 3


def test_an_adaptive_request_stops_asking_when_nothing_is_accepted() -> None:
    trees = Listener()
    config = EngineConfig(num_pages=64, page_size=4)
    memory = KVCacheManager(config, 512)
    state = decoding(config, memory, trees)
    drafting = drafting_of(trees, memory, config)
    drafting.send_commits([(state, (1,))], 1)
    assert trees.told[-1].max_depth > 0
    item = ScheduledRequest(state, 1, TokenTree.chain([1, 2, 3, 4]))
    for _ in range(60):
        drafting.observe_step([VerifyResult(item, AcceptedPath((), (9,)), 0)], 1, 4, 1.4e-3)
    drafting.send_commits([(state, (1,))], 1)
    assert (trees.told[-1].max_nodes, trees.told[-1].max_depth) == (1, 0)


@pytest.mark.parametrize(("seconds", "asks"), [(1e-4, True), (2e-2, False)])
def test_what_an_engine_idles_for_the_sake_of_trees_is_part_of_their_price(seconds: float, asks: bool) -> None:
    trees = Fixed(TokenTree.chain([1, 2]))
    config = EngineConfig(num_pages=64, page_size=4)
    memory = KVCacheManager(config, 512)
    drafting, state = drafting_of(trees, memory, config), decoding(config, memory, trees)
    for _ in range(60):
        state.draft.awaiting_tree = True
        item = ScheduledRequest(state, 1)
        drafting.attach_trees([item])
        drafting.settle_wait(seconds, 1)
        drafting.observe_step([VerifyResult(item, AcceptedPath((0, 1), (1, 2, 9)), 0)], 1, 2, 1.4e-3)
    drafting.send_commits([(state, (1,))], 1)
    assert state.draft.awaiting_tree == asks


def test_trees_outlive_an_engine_that_idles_once_for_long() -> None:
    trees = Fixed(TokenTree.chain([1, 2]))
    config = EngineConfig(num_pages=64, page_size=4)
    memory = KVCacheManager(config, 512)
    drafting, state = drafting_of(trees, memory, config), decoding(config, memory, trees)
    for seconds in (*[1e-4] * 60, 2.0):
        state.draft.awaiting_tree = True
        item = ScheduledRequest(state, 1)
        drafting.attach_trees([item])
        drafting.settle_wait(seconds, 1)
        drafting.observe_step([VerifyResult(item, AcceptedPath((0, 1), (1, 2, 9)), 0)], 1, 2, 1.4e-3)
    drafting.send_commits([(state, (1,))], 1)
    assert state.draft.awaiting_tree


def test_a_request_in_a_step_under_way_asks_for_nothing() -> None:
    trees = Listener()
    config = EngineConfig(num_pages=64, page_size=4, adaptive=False)
    memory = KVCacheManager(config, 512)
    state, other = decoding(config, memory, trees), decoding(config, memory, trees)
    state.num_output_placeholders = 1
    drafting_of(trees, memory, config).send_commits([(state, (1,)), (other, (1,))], 2)
    assert [(told.max_nodes, told.max_depth > 0) for told in trees.told] == [(1, False), (64, True)]
    assert (state.draft.awaiting_tree, other.draft.awaiting_tree) == (False, True)


class Behind(Listener):
    """Drafts behind steps for all requests but those in `without`."""

    def __init__(self) -> None:
        super().__init__()
        self.without: set[RequestKey] = set()

    def drafts_on_device(self) -> bool:
        return True

    def drafts_behind(self, keys: Sequence[RequestKey]) -> bool:
        return self.without.isdisjoint(keys)


def test_drafting_for_many_begins_behind_a_plain_step_and_not_before_the_next() -> None:
    trees = Behind()
    config = EngineConfig(num_pages=64, page_size=4, adaptive=False)
    memory = KVCacheManager(config, 512)
    states = [decoding(config, memory, trees) for _ in range(2)]
    drafting = drafting_of(trees, memory, config)

    def asks(*, launched: bool = False) -> list[tuple[bool, bool]]:
        drafting.send_commits([(state, (1,)) for state in states], 2, launched=launched)
        told = trees.told[-2:]
        assert [each.max_nodes > 1 for each in told] == [True, True]
        return [(each.behind, state.draft.awaiting_tree) for each, state in zip(told, states, strict=True)]

    assert asks() == [(True, False)] * 2
    assert asks() == [(False, True)] * 2, "nothing came of the last try"
    assert asks() == [(True, False)] * 2
    assert asks(launched=True) == [(True, False)] * 2
    assert asks() == [(True, False)] * 2
    trees.without = {states[1].key}
    drafting.send_commits([(state, (1,)) for state in states], 2, launched=True)
    assert asks() == [(False, True)] * 2, "one would never get a tree"


def test_drafting_for_one_request_alone_begins_before_the_next_step() -> None:
    trees = Behind()
    config = EngineConfig(num_pages=64, page_size=4, adaptive=False)
    memory = KVCacheManager(config, 512)
    state = decoding(config, memory, trees)
    drafting_of(trees, memory, config).send_commits([(state, (1,))], 1)
    assert not trees.told[-1].behind
    assert state.draft.awaiting_tree


def test_a_source_that_did_not_listen_is_told_later_of_all_tokens_but_not_of_their_states() -> None:
    class Absent(Listener):
        here = False

        def accepts_commits(self) -> bool:
            return self.here

        def expects(self, keys: object) -> bool:
            return True

    trees = Absent()
    config = EngineConfig(num_pages=64, page_size=4, adaptive=False)
    memory = KVCacheManager(config, 512)
    state = decoding(config, memory, trees)
    state.draft.awaiting_tree = False
    drafting = drafting_of(trees, memory, config)
    features = {state.key: HiddenStateRows((1,), 9, np.zeros((1, 8), np.uint16))}
    for trees.here, tokens in ((False, (1, 2)), (False, (3,)), (True, (4,)), (True, (5,))):
        state.tokens.extend(tokens)
        state.kv.num_computed_tokens = len(state.tokens) - 1
        drafting.send_commits([(state, tokens)], 1, features)
        assert state.draft.awaiting_tree == trees.here
        assert drafting.expects_trees([ScheduledRequest(state, 1)]) == trees.here
    assert [told.token_ids for told in trees.told] == [(1, 2, 3, 4), (5,)]
    assert [told.features is None for told in trees.told] == [True, False]


def test_the_trees_of_a_step_share_its_nodes() -> None:
    config = EngineConfig(num_pages=64, page_size=4, step_nodes=6)
    memory = KVCacheManager(config, 512)
    trees = Fixed(TokenTree.chain([1, 2, 3, 4]))
    items = [ScheduledRequest(decoding(config, memory, trees), 1) for _ in range(3)]
    drafting_of(trees, memory, config).attach_trees(items)
    assert [item.num_rows - 1 for item in items] == [4, 2, 0]


class Failing(Fixed):
    """Cannot say what it expects."""

    def expects(self, keys: object) -> bool:
        raise RuntimeError("expects")


def test_a_source_that_cannot_say_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    config = EngineConfig(num_pages=64, page_size=4, adaptive=False)
    memory = KVCacheManager(config, 512)
    for trees, expected in ((Failing(None), False), (Fixed(None), True)):
        state = decoding(config, memory, trees)
        trees.tokens[state.key] = []
        with caplog.at_level(logging.CRITICAL):
            assert drafting_of(trees, memory, config).expects_trees([ScheduledRequest(state, 1)]) == expected


def test_nothing_is_expected_where_requests_outnumber_nodes() -> None:
    trees = Listener()
    config = EngineConfig(num_pages=64, page_size=4, step_nodes=4, adaptive=False)
    memory = KVCacheManager(config, 512)
    state = decoding(config, memory, trees)
    trees.tokens[state.key] = []
    drafting = drafting_of(trees, memory, config)
    for running, expected in ((4, True), (5, False), (2, True)):
        drafting.send_commits([(state, (1,))], running)
        assert drafting.expects_trees([ScheduledRequest(state, 1)]) == expected


@pytest.mark.parametrize(("seconds", "slow"), [(1e-5, False), (1e-3, True)])
def test_a_slow_source_leaves_time_for_other_work(monkeypatch: pytest.MonkeyPatch, seconds: float, slow: bool) -> None:
    config = EngineConfig(num_pages=64, page_size=4)
    memory, trees = KVCacheManager(config, 512), Fixed(None)
    drafting, state = drafting_of(trees, memory, config), decoding(config, memory, trees)
    clock = iter((1.0, 1.0 + seconds))
    monkeypatch.setattr("verify_service.speculation.draft_latency.time.perf_counter", lambda: next(clock))
    drafting.attach_trees([ScheduledRequest(state, 1)])
    assert not drafting.expects_wait([state])
    state.draft.awaiting_tree = True
    assert drafting.expects_wait([state]) == slow
    assert not drafting.expects_wait([])


def test_nodes_that_do_not_pay_are_left_out_but_for_requests_of_a_fixed_budget() -> None:
    trees = Fixed(TokenTree((1, 2, 3), (-1, 0, -1), (-0.05, -0.1, -4.0)))
    config = EngineConfig(num_pages=64, page_size=4)
    memory = KVCacheManager(config, 512)
    drafting = drafting_of(
        trees,
        memory,
        config,
        StepTimeModel([(1, 1, 1e-3), (1, 3, 1.1e-3), (1, 4, 1.9e-3), (1, 5, 2e-3), (1, 6, 9e-3), (1, 64, 90e-3)]),
    )
    free, fixed = decoding(config, memory, trees), decoding(config, memory, trees)
    fixed.draft.adaptive = False
    items = [ScheduledRequest(free, 1), ScheduledRequest(fixed, 1)]
    drafting.attach_trees(items)
    assert items[1].tree is trees.tree
    assert items[0].tree is None
    fixed.draft.awaiting_tree, free.draft.awaiting_tree = False, True
    alone = ScheduledRequest(free, 1)
    drafting.attach_trees([alone])
    assert alone.tree == TokenTree((1, 2), (-1, 0), (-0.05, -0.1))
