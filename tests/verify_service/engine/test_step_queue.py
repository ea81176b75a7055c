"""When steps are launched and decided, seen from an engine whose tokens are scripted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import ScriptedTrees, admitted
from verify_service.core.acceptance import AcceptedPath
from verify_service.core.draft_source import DraftSource, NoDrafts
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import SamplingParams
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import StepHandle, StepTimes, VerifyResult
from verify_service.core.step_time_model import StepTimeModel
from verify_service.engine.launch_clock import LaunchClock
from verify_service.engine.step_queue import StepQueue
from verify_service.hidden_states.device_ring import RingReservation, RingSlice
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.speculation.acceptance_model import AcceptanceModel
from verify_service.speculation.controller import SpeculationController
from verify_service.speculation.goodput import GoodputOptimizer

CONFIG = EngineConfig(num_pages=64, page_size=4, adaptive=False)


@dataclass(frozen=True, slots=True, eq=False)
class Routed(StepHandle):
    """States of each item go to the same rows."""

    routed: Sequence[RingSlice]

    def spans(self, item: ScheduledRequest) -> Sequence[RingSlice]:
        return self.routed


class Scripted:
    """A ModelRunner that only notes what is asked of it."""

    def __init__(self, lookahead: int) -> None:
        self.lookahead = lookahead
        self.journal: list[str] = []
        self.failing = False
        self.measured: StepTimes | None = None
        self.takes_unresolved_trees = True
        self.spans: list[RingSlice] = []
        self.path = AcceptedPath((), (7,))

    def launch(self, items: Sequence[ScheduledRequest]) -> StepHandle:
        if self.failing:
            raise RuntimeError("no")
        self.journal.append("launch")
        return Routed([item for item in items if item.decides], self.spans)

    def times(self, launched: StepHandle) -> StepTimes | None:
        return self.measured

    def decide(self, launched: StepHandle) -> list[VerifyResult]:
        self.journal.append("decide")
        return [VerifyResult(item, self.path, 0) for item in launched.deciding]


def bench(
    lookahead: int, trees: DraftSource | None = None, config: EngineConfig = CONFIG
) -> tuple[StepQueue, Scripted]:
    engine = Scripted(lookahead)
    budget = GoodputOptimizer(StepTimeModel([(1, 1, 1e-3), (1, 64, 8e-3)]), AcceptanceModel())
    drafting = SpeculationController(trees or NoDrafts(), KVCacheManager(config, 512), config, budget)
    return StepQueue(engine, drafting), engine  # type: ignore[arg-type]  # what a pipeline uses of it


def decoding(trees: DraftSource | None = None, max_tokens: int = 100) -> RequestState:
    state = admitted(CONFIG, range(7), sampling=SamplingParams(seed=1, max_tokens=max_tokens), trees=trees)
    state.kv.req_index = 0
    state.kv.num_computed_tokens = 6
    return state


class Attached(ScriptedTrees):
    """A source that says whether trees may come."""

    expecting = True

    def expects(self, keys: object) -> bool:
        return self.expecting


def row(state: RequestState) -> list[ScheduledRequest]:
    return [ScheduledRequest(state, state.num_unscheduled_tokens)]


def fill(pipeline: StepQueue, rows: Callable[[], list[ScheduledRequest]]) -> int:
    launched = 0
    while pipeline.can_launch and launched < 9:
        pipeline.launch(rows())
        launched += 1
    return launched


@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_a_pipeline_is_filled_to_the_lookahead(lookahead: int) -> None:
    pipeline, engine = bench(lookahead)
    state = decoding()
    assert not pipeline
    assert fill(pipeline, lambda: row(state)) == 1 + lookahead
    assert (state.num_output_placeholders, state.kv.num_computed_tokens, state.num_unscheduled_tokens) == (
        1 + lookahead,
        7 + lookahead,
        1,
    )
    decisions, seconds = pipeline.decide(pipeline.next())
    assert [decision.item.first for decision in decisions] == [6]
    assert seconds >= 0
    assert state.num_output_placeholders == lookahead
    assert fill(pipeline, lambda: row(state)) == 1
    assert engine.journal == [*["launch"] * (1 + lookahead), "decide", "launch"]


def test_a_prompt_is_run_ahead_of_chunk_by_chunk() -> None:
    pipeline, _ = bench(1)
    state = decoding()
    state.kv.num_computed_tokens = 0
    pipeline.launch([ScheduledRequest(state, 4)])
    assert (state.kv.num_computed_tokens, state.num_output_placeholders, state.num_unscheduled_tokens) == (4, 0, 3)
    assert pipeline.can_launch
    pipeline.launch([ScheduledRequest(state, 3)])
    assert (state.kv.num_computed_tokens, state.num_output_placeholders) == (7, 1)


def test_nothing_is_launched_beyond_a_tree() -> None:
    pipeline, _ = bench(1)
    pipeline.launch([ScheduledRequest(decoding(), 1, TokenTree.chain([1]))])
    assert not pipeline.can_launch
    pipeline.next()
    assert pipeline.can_launch


def test_beyond_trees_of_requests_that_are_over_the_next_step_is_launched() -> None:
    pipeline, _ = bench(1)
    states = [decoding(), decoding()]
    pipeline.launch([ScheduledRequest(state, 1, TokenTree.chain([1])) for state in states])
    states[0].finished = True
    assert not pipeline.can_launch
    states[1].finished = True
    assert pipeline.can_launch


def test_nothing_is_launched_beyond_a_request_that_will_ask_for_a_tree() -> None:
    trees = Attached()
    pipeline, _ = bench(1, trees)
    state = decoding(trees)
    pipeline.launch(row(state))
    assert not pipeline.can_launch
    trees.expecting = False
    assert pipeline.can_launch


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_a_tree_is_expected_only_where_one_could_still_be_output(max_tokens: int) -> None:
    """After the step under way a tree needs room for one token and the bonus token."""
    trees = Attached()
    pipeline, _ = bench(1, trees)
    pipeline.launch(row(decoding(trees, max_tokens)))
    assert pipeline.can_launch == (max_tokens < 3)


def test_a_prompt_that_decides_nothing_yet_expects_no_tree() -> None:
    trees = Attached()
    pipeline, _ = bench(1, trees)
    state = decoding(trees)
    state.kv.num_computed_tokens = 0
    pipeline.launch([ScheduledRequest(state, 4)])
    assert pipeline.can_launch


def test_adaptive_requests_are_waited_for_while_trees_pay() -> None:
    trees = Attached()
    config = replace(CONFIG, adaptive=True)
    engine = Scripted(1)
    budget = GoodputOptimizer(StepTimeModel([(1, 1, 1e-3), (1, 2, 9.0)]), AcceptanceModel())
    drafting = SpeculationController(trees, KVCacheManager(config, 512), config, budget)
    pipeline = StepQueue(engine, drafting)  # type: ignore[arg-type]  # what a pipeline uses of it
    state = admitted(config, range(7), sampling=SamplingParams(seed=1), trees=trees)
    state.kv.req_index, state.kv.num_computed_tokens = 0, 6
    trees.tokens[state.key] = list(state.tokens)
    pipeline.launch(row(state))
    assert not pipeline.can_launch
    pipeline.next()
    state.tokens.append(7)
    drafting.send_commits([(state, (7,))], 1)
    assert not state.draft.awaiting_tree
    pipeline.launch(row(state))
    assert pipeline.can_launch


def test_a_launch_that_fails_leaves_requests_where_they_were() -> None:
    pipeline, engine = bench(1)
    engine.failing = True
    state = decoding()
    with pytest.raises(RuntimeError):
        pipeline.launch(row(state))
    assert (state.kv.num_computed_tokens, state.num_output_placeholders) == (6, 0)
    assert not pipeline


class Unread:
    """Trees of a device, which note when the host reads them."""

    def __init__(self, journal: list[str], tree: TokenTree) -> None:
        self.journal, self.tree = journal, tree

    def queue(self) -> torch.Tensor:
        raise NotImplementedError

    def read(self, row: int) -> TokenTree:
        self.journal.append("read")
        return self.tree


@pytest.mark.parametrize("tree", [TokenTree.chain((1, 2)), TokenTree((), ())], ids=["a tree", "an empty one"])
def test_trees_that_only_a_device_knows_are_read_behind_the_launch(
    tree: TokenTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1.0
    monkeypatch.setattr("verify_service.engine.step_queue.time.perf_counter", lambda: now)
    pipeline, engine = bench(1)
    (item,) = items = row(decoding())
    item.tree = DeviceTree(Unread(engine.journal, tree), 0, 5, 3)
    pipeline.launch(items)
    assert (engine.journal, item.state.kv.num_computed_tokens) == (["launch"], 7)
    now = 3.0
    pipeline.read_trees()
    assert engine.journal == ["launch", "read"]
    assert (item.tree, item.num_rows, item.state.max_inflight_drafts) == (tree or None, 6, 3)
    assert not pipeline.can_launch, "how many tokens it decides is not known before it is decided"
    now = 4.0
    assert pipeline.decide(pipeline.next())[1] == 1.0, "it counts as begun from when its trees were known"
    assert item.state.max_inflight_drafts == 0
    pipeline.launch(row(decoding()))
    pipeline.read_trees()
    assert engine.journal[3:] == ["launch"]


def test_a_step_is_not_charged_for_the_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("verify_service.engine.step_queue.time.perf_counter", lambda: now)
    pipeline, _ = bench(1)
    state = decoding()
    pipeline.launch(row(state))
    now = 1.0
    pipeline.launch(row(state))
    now = 5.0
    assert pipeline.decide(pipeline.next())[1] == 5.0
    now = 7.0
    assert pipeline.decide(pipeline.next())[1] == 2.0
    now = 100.0
    pipeline.launch(row(state))
    now = 101.5
    assert pipeline.decide(pipeline.next())[1] == 1.5


def test_beyond_a_tree_a_step_is_launched_where_no_other_tree_is_expected() -> None:
    trees = Attached()
    pipeline, engine = bench(1, trees)
    state = decoding(trees)
    assert not pipeline.can_launch_unresolved
    pipeline.launch([ScheduledRequest(state, 1, TokenTree.chain([7, 8]))])
    assert (pipeline.can_launch, pipeline.can_launch_unresolved) == (False, False)
    trees.expecting = False
    assert (pipeline.can_launch, pipeline.can_launch_unresolved) == (False, True)
    engine.lookahead = 0
    assert not pipeline.can_launch_unresolved
    engine.lookahead = 1

    assert (state.length, state.max_inflight_drafts) == (8, 2)
    item = ScheduledRequest(state, 1, unresolved=True)
    pipeline.launch([item])
    assert not pipeline.can_launch_unresolved
    assert (state.length, state.kv.num_computed_tokens, state.max_inflight_drafts) == (9, 8, 2)
    assert pipeline.under_way == {state: item}
    engine.path = AcceptedPath((0,), (7, 9))
    pipeline.decide(pipeline.next())
    assert (item.tree, item.first, item.base, item.unresolved) == (None, 8, 9, False)
    assert state.max_inflight_drafts == 0
    pipeline.decide(pipeline.next())
    assert (state.num_output_placeholders, state.max_inflight_drafts, pipeline.under_way) == (0, 0, {})
    assert pipeline.can_launch


@pytest.mark.parametrize(("max_tokens", "likely_over"), [(2, True), (3, False)])
def test_no_step_is_launched_past_one_after_which_nobody_is_likely_left(max_tokens: int, likely_over: bool) -> None:
    trees = Attached()
    trees.expecting = False
    for others, may in ((), not likely_over), ((decoding(trees),), True):
        pipeline, _ = bench(1, trees)
        states = decoding(trees, max_tokens), *others
        pipeline.launch([ScheduledRequest(state, 1, TokenTree.chain([7, 8])) for state in states])
        assert pipeline.can_launch_unresolved == may


def promise(monkeypatch: pytest.MonkeyPatch, promised: list[bool]) -> None:
    """Of the trees behind the step under way, whether they suffice."""
    monkeypatch.setattr(SpeculationController, "can_launch_ahead", property(lambda _: promised[0]))


def test_with_trees_promised_behind_a_step_the_next_one_is_launched_before_it_is_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    promised = [True]
    promise(monkeypatch, promised)
    pipeline, engine = bench(1, Attached())
    state = decoding(Attached())
    assert not pipeline.can_launch_ahead, "nothing is under way"
    pipeline.launch([ScheduledRequest(state, 1, TokenTree.chain([7, 8]))])
    assert pipeline.can_launch_ahead
    engine.takes_unresolved_trees = False
    assert not pipeline.can_launch_ahead
    engine.takes_unresolved_trees = True
    promised[0] = False
    assert not pipeline.can_launch_ahead
    promised[0] = True

    engine.spans = [RingSlice(None, (), 7, 3, 0, 8, torch.zeros(0), 0, RingReservation(0))]  # type: ignore[arg-type]
    tree = DeviceTree(Unread(engine.journal, TokenTree.chain([3])), 0, 2, 2)
    item = ScheduledRequest(state, 1, tree, unresolved=True)
    pipeline.launch([item], ahead=True)
    assert not pipeline.can_launch_ahead
    assert (state.length, state.kv.num_computed_tokens, state.max_inflight_drafts) == (9, 8, 4)
    engine.path = AcceptedPath((0,), (7, 9))
    pipeline.decide(pipeline.next())
    assert (item.first, item.base, item.unresolved) == (8, 9, False)
    assert engine.spans[0].first == 8
    assert list(pipeline.take_ahead()) == [item]
    assert not pipeline.take_ahead(), "what is due is due once"
    pipeline.read_trees()
    assert "read" in engine.journal
    pipeline.decide(pipeline.next())
    assert (state.num_output_placeholders, state.max_inflight_drafts) == (0, 0)


def test_tenants_that_share_a_step_have_it_decided_first(monkeypatch: pytest.MonkeyPatch) -> None:
    promise(monkeypatch, [True])
    pipeline, _ = bench(1)
    states = [decoding(), decoding()]
    states[1].parameters = replace(states[1].parameters, tenant="other")
    pipeline.launch([ScheduledRequest(state, 1, TokenTree.chain([7])) for state in states])
    assert not pipeline.can_launch_ahead


def test_a_launch_ahead_waits_for_requests_as_long_as_the_clock_says(monkeypatch: pytest.MonkeyPatch) -> None:
    promised = [True]
    promise(monkeypatch, promised)
    monkeypatch.setattr(LaunchClock, "left", 0.25)
    pipeline, _ = bench(1)
    assert pipeline.seconds_ahead == 0
    pipeline.launch([ScheduledRequest(decoding(), 1, TokenTree.chain([7]))])
    assert pipeline.seconds_ahead == 0.25
    promised[0] = False
    assert pipeline.seconds_ahead == 0


def test_a_step_took_what_the_engine_says_and_its_trees_cost_what_the_engine_idled_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settled: list[tuple[float | None, int]] = []
    monkeypatch.setattr(SpeculationController, "settle_wait", lambda _, *told: settled.append(told))
    pipeline, engine = bench(1)
    state = decoding()
    for engine.measured in (StepTimes(idle=0.25, busy=0.5), None):
        pipeline.launch(row(state))
        _, seconds = pipeline.decide(pipeline.next())
        assert (seconds == 0.5) == (engine.measured is not None)
    assert settled == [(0.25, 1), (None, 1)]


@pytest.mark.parametrize("late", [False, True])
def test_the_clock_hears_of_steps_alone_and_of_those_that_were_over(
    monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    heard: list[bool] = []
    monkeypatch.setattr(Routed, "over", late)
    monkeypatch.setattr(LaunchClock, "launched", lambda clock, begun_at, seconds, *, alone: heard.append(alone))
    monkeypatch.setattr(LaunchClock, "decided", lambda clock, now, *, late: heard.append(late))
    pipeline, _ = bench(1)
    state = decoding()
    pipeline.launch(row(state))
    pipeline.launch(row(state))
    pipeline.decide(pipeline.next())
    assert heard == [True, False, late]
