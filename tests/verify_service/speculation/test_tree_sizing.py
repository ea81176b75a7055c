"""While no trees pay, drafters are told of few requests; once they do, of all, and nothing is missing then."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import count

import pytest

from slipstream.generation_types import FinishReason
from support.verify_loop import RandomTrees, admitted
from verify_service.core.draft_source import Committed, RequestOpening, WaitUrgency
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import RequestKey
from verify_service.core.request_state import RequestState
from verify_service.core.step_time_model import StepTimeModel
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.speculation import gate
from verify_service.speculation.acceptance_model import AcceptanceModel
from verify_service.speculation.controller import SpeculationController
from verify_service.speculation.gate import OPEN_AFTER, PROBE_EVERY, PROBE_STEPS, READY_BEFORE, REST_AFTER
from verify_service.speculation.goodput import DepthCandidate, GoodputOptimizer
from verify_service.speculation.tree_sizing import KEPT_READY, TreeSizer, haste_of

CONFIG = EngineConfig(num_pages=64, page_size=4, step_nodes=32)
UNTIL_READY = PROBE_EVERY - READY_BEFORE
"""Steps in a row in which no trees pay before the first requests are made ready for a probe."""
DEAR, FREE = [(1, 1, 1e-3), (1, 64, 64e-3)], [(1, 1, 1e-3), (1, 64, 1e-3)]


class Listener(RandomTrees):
    """Keeps what it is told; drafters of `lagging` requests lack states."""

    def __init__(self) -> None:
        super().__init__(512)
        self.told: list[list[Committed]] = []
        self.lagging: set[RequestKey] = set()

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        self.told.append(list(commits))
        return self.lagging & {each.key for each in commits}


def budget(table: list[tuple[int, int, float]]) -> GoodputOptimizer:
    """One under which trees have paid for long."""
    made = GoodputOptimizer(StepTimeModel(table), AcceptanceModel())
    for _ in range(gate.FORGET_FIRST + 1):
        made.gate.step(profitable=True)
    for _ in range(100):
        made.observe_wait(0.0, asked=1, arrived=1, levels=1)
    return made


def requests(number: int, *, adaptive: bool = True) -> list[RequestState]:
    trees = RandomTrees(512)
    states = [admitted(CONFIG, range(10, 17), request_id=index, trees=trees) for index in range(number)]
    for state in states:
        state.draft.adaptive = adaptive
    return states


def rested(wishes: TreeSizer, states: Sequence[RequestState], steps: int, running: int = 0) -> list[int]:
    for _ in range(steps):
        depths = wishes.depths(states, running or len(states))
    return depths


def test_all_rest_after_a_while_in_which_no_trees_pay_but_a_few_before_each_probe() -> None:
    wishes, states = TreeSizer(budget(DEAR), 32), requests(9)
    assert not any(rested(wishes, states, REST_AFTER))
    assert not any(state.draft.paused for state in states)
    rested(wishes, states, 1)
    assert all(state.draft.paused for state in states)
    rested(wishes, states, UNTIL_READY - REST_AFTER - 2)
    assert all(state.draft.paused for state in states)
    rested(wishes, states, 1)
    awake = [state for state in states if not state.draft.paused]
    assert len(awake) == KEPT_READY
    rested(wishes, states, READY_BEFORE // 2)
    assert [state for state in states if not state.draft.paused] == awake
    assert [wishes.wants_states(state, len(states)) for state in states] == [state in awake for state in states]
    awake[0].finished = True
    states.remove(awake[0])
    rested(wishes, states, 1)
    assert sum(not state.draft.paused for state in states) == KEPT_READY
    assert all(not state.draft.paused for state in awake[1:])
    rested(wishes, states, READY_BEFORE // 2 + PROBE_STEPS - 2)
    assert sum(not state.draft.paused for state in states) == KEPT_READY
    rested(wishes, states, 1)
    assert all(state.draft.paused for state in states)


def test_whom_a_long_wait_would_hold_up() -> None:
    adaptive, fixed = requests(1), requests(2, adaptive=False)
    assert haste_of(fixed, 2) is WaitUrgency.INSISTENT
    assert haste_of([*fixed, *adaptive], 3) is WaitUrgency.WEIGHED
    assert haste_of(fixed, 3) is WaitUrgency.HURRIED
    assert haste_of([*fixed, *adaptive], 4) is WaitUrgency.HURRIED


def test_the_source_is_told_whom_a_long_wait_would_hold_up() -> None:
    fixed, trees = requests(2, adaptive=False), Listener()
    drafting = SpeculationController(trees, KVCacheManager(CONFIG, 512), CONFIG, budget(DEAR))
    for running in (2, 3):
        drafting.send_commits([(state, (10,)) for state in fixed], running)
    assert [{each.haste for each in told} for told in trees.told] == [{WaitUrgency.INSISTENT}, {WaitUrgency.HURRIED}]


@pytest.mark.parametrize(("number", "left", "brought"), [(1, 3, True), (1, 2, False), (9, 19, True), (9, 18, False)])
def test_states_are_brought_where_enough_is_left_of_requests(number: int, left: int, *, brought: bool) -> None:
    wishes, states = TreeSizer(budget(FREE), 32), requests(number)
    for state in states:
        state.tokens += [10] * (700 - state.length)
        state.parameters = replace(state.parameters, max_length=state.length + left)
        state.draft.catching_up = True
    assert not any(rested(wishes, states, 1))
    assert {wishes.wants_states(state, number) for state in states} == {brought}
    rested(wishes, states, REST_AFTER)
    assert {state.draft.paused for state in states} == {not brought}


def test_a_load_at_which_trees_do_not_pay_is_known_before_its_prompts_are_computed() -> None:
    dear_for_many = [(1, 1, 1e-3), (1, 64, 1e-3), (64, 64, 1e-3), (64, 128, 64e-3)]
    wishes, few, many = TreeSizer(budget(dear_for_many), 128), requests(2), requests(60)
    for state in few:
        wishes.begin(state, expected=2)
    assert all(rested(wishes, few, 20, running=2))
    for state in many:
        wishes.begin(state, expected=62)
    assert all(state.draft.paused for state in many)
    assert not any(rested(wishes, few, 1, running=62))
    assert all(state.draft.paused for state in few)
    assert not any(rested(wishes, [*few, *many], 20, running=62))
    for state in many:
        state.finished = True
    rested(wishes, few, OPEN_AFTER, running=2)
    assert not any(state.draft.paused for state in few)
    for state in few:
        state.draft.catching_up = False
    assert all(rested(wishes, few, 1, running=2))


def test_those_that_wait_for_their_first_token_count_and_are_forgotten_when_they_end() -> None:
    dear_for_many = [(1, 1, 1e-3), (1, 64, 1e-3), (64, 64, 1e-3), (64, 128, 64e-3)]
    wishes, few, many = TreeSizer(budget(dear_for_many), 128), requests(2), requests(60)
    assert all(rested(wishes, few, 20, running=2))
    for state in many:
        wishes.begin(state, expected=1)
    assert not any(rested(wishes, few, 1, running=62))
    for state in many:
        state.finished = True
    assert all(rested(wishes, few, 1, running=2))


def test_a_request_that_starts_meanwhile_rests_from_the_first() -> None:
    wishes, states = TreeSizer(budget(DEAR), 32), requests(9)
    rested(wishes, states, REST_AFTER + 1)
    new, fixed = requests(1)[0], requests(1, adaptive=False)[0]
    wishes.begin(new)
    wishes.begin(fixed)
    assert (new.draft.paused, fixed.draft.paused) == (True, False)


def test_states_of_older_tokens_wait_until_trees_of_all_pay() -> None:
    made, states = budget(DEAR), requests(9)
    wishes = TreeSizer(made, 32)
    rested(wishes, states, 1)
    assert not any(wishes.wants_states(state, len(states)) for state in states)
    made.step_time = StepTimeModel(FREE)
    states[0].draft.acceptance.observe(1, 1)
    rested(wishes, states, REST_AFTER)
    assert all(wishes.wants_states(state, len(states)) for state in states)


@pytest.mark.parametrize(("table", "pays"), [(DEAR, False), (FREE, True)])
def test_where_all_lack_states_they_get_them_if_trees_would_pay(
    table: list[tuple[int, int, float]], *, pays: bool
) -> None:
    wishes, states = TreeSizer(budget(table), 32), requests(9)
    for state in states:
        state.draft.catching_up = True
    assert not any(rested(wishes, states, 1))
    assert [wishes.wants_states(state, len(states)) for state in states] == [pays] * 9
    assert not any(rested(wishes, states, REST_AFTER))
    assert sum(state.draft.paused for state in states) == (0 if pays else 9)


def test_what_was_seen_of_requests_that_rest_fades() -> None:
    wishes, states = TreeSizer(budget(DEAR), 32), requests(9)
    for state in states:
        state.draft.acceptance.observe(32, 4)
    rested(wishes, states, PROBE_EVERY - 1)
    assert {state.draft.acceptance.tried for state in states} == {32}
    rested(wishes, states, 1)
    assert sum(not state.draft.paused for state in states) == KEPT_READY
    seen = {(state.draft.paused, state.draft.acceptance.tried, state.draft.acceptance.matched) for state in states}
    assert seen == {(False, 32, 4), (True, 16, 2)}


def test_where_trees_pay_nobody_rests() -> None:
    wishes, states = TreeSizer(budget(FREE), 32), requests(9)
    assert all(rested(wishes, states, 2 * REST_AFTER))
    assert not any(state.draft.paused for state in states)


def test_fixed_budgets_rest_only_where_no_request_has_room_for_a_tree() -> None:
    wishes, states = TreeSizer(budget(DEAR), 32), requests(9, adaptive=False)
    assert all(rested(wishes, states, 2 * REST_AFTER))
    assert not any(rested(wishes, states, REST_AFTER + 1, running=33))
    assert all(state.draft.paused for state in states)
    assert not any(rested(wishes, states, 1))  # they are told first
    assert not any(state.draft.paused for state in states)


def test_trees_of_fixed_budgets_are_part_of_a_steps_price() -> None:
    cheap_then_dear = [(1, 1, 1e-3), (1, 13, 1.1e-3), (1, 14, 9e-3), (1, 64, 60e-3)]
    free, fixed = requests(1)[0], requests(2, adaptive=False)
    alone, beside = ([*some, free] for some in ([], fixed))
    assert TreeSizer(budget(cheap_then_dear), 32).depths(alone, 1)[-1] >= 8
    assert TreeSizer(budget(cheap_then_dear), 32).depths(beside, 3)[-1] == 13 - 3 - 2 * 4


def test_probes_ask_those_whose_drafters_are_up_to_date() -> None:
    class Probing(GoodputOptimizer):
        def choose_depths(
            self,
            bidders: Sequence[DepthCandidate],
            requests: int,
            others: Sequence[DepthCandidate] = (),
            *,
            nodes: int = 0,
        ) -> list[int]:
            super().choose_depths(bidders, requests, others, nodes=nodes)
            return [1] * len(bidders)

    made = Probing(StepTimeModel(DEAR), AcceptanceModel())
    made.gate.open()
    wishes, states = TreeSizer(made, 32), requests(9)
    for steps in (UNTIL_READY, READY_BEFORE - PROBE_STEPS):
        assert sum(rested(wishes, states, steps)) == 0
        assert sum(not state.draft.paused for state in states) == KEPT_READY
        for state in states:
            state.draft.catching_up = state.draft.paused
    depths = rested(wishes, states, 1)
    assert depths == [int(not state.draft.paused) for state in states]
    assert sum(depths) == KEPT_READY
    assert wishes.is_profitable


def test_drafters_made_ready_for_a_probe_hear_nothing_more_until_it_nears_and_then_of_every_step() -> None:
    trees, made = Listener(), budget(DEAR)
    drafting = SpeculationController(trees, KVCacheManager(CONFIG, 512), CONFIG, made)
    states = requests(2)
    for state in states:
        state.parameters = replace(state.parameters, max_length=1000)

    def step() -> list[int]:
        """Tokens that the source is told of each request."""
        before = len(trees.told)
        for state in states:
            state.tokens.append(1)
        drafting.send_commits([(state, (1,)) for state in states], len(states))
        return [len(each.token_ids) for told in trees.told[before:] for each in told]

    for _ in range(REST_AFTER):
        assert step() == [1, 1]
    for _ in range(REST_AFTER, UNTIL_READY - 1):
        assert step() == []
    trees.lagging = {states[0].key}
    missed = UNTIL_READY - REST_AFTER
    assert step() == [missed, missed]
    assert step() == [1], "whose drafter lacks states goes on to be told"
    trees.lagging = set()
    assert step() == [1]
    for _ in range(UNTIL_READY + 2, PROBE_EVERY - PROBE_STEPS - 1):
        assert step() == []
    held = READY_BEFORE - PROBE_STEPS
    assert sorted(step()) == [held - 2, held]
    for _ in range(PROBE_EVERY - PROBE_STEPS, PROBE_EVERY + PROBE_STEPS - 1):
        assert step() == [1, 1]
    assert step() == []


def test_nobody_is_told_of_more_where_trees_pay_for_those_alone_whose_drafters_are_up_to_date() -> None:
    made, states = budget(FREE), requests(9)
    for _ in range(9):
        made.observe_wait(1.0, asked=9, arrived=9, levels=1)
        made.observe_wait(0.0, asked=KEPT_READY, arrived=KEPT_READY, levels=1, running=9)
    wishes = TreeSizer(made, 32)
    assert not any(rested(wishes, states, UNTIL_READY))
    awake = [state for state in states if not state.draft.paused]
    alone = [DepthCandidate(state.draft.acceptance, state.depth_left) for state in awake]
    those_alone = deepcopy(made)
    assert any(any(those_alone.choose_depths(alone, 9)) for _ in range(OPEN_AFTER))
    assert not any(rested(wishes, states, READY_BEFORE // 2))
    assert sum(state.draft.paused for state in states) == 9 - KEPT_READY


def test_who_rested_is_told_of_all_it_missed_and_asks_once_its_drafter_has_caught_up() -> None:
    trees, memory, made = Listener(), KVCacheManager(CONFIG, 512), budget(DEAR)
    drafting = SpeculationController(trees, memory, CONFIG, made)
    states, number = requests(9), count(20)
    for state in states:
        state.parameters = replace(state.parameters, max_length=1000)
    before = len(states[0].tokens)

    def step() -> list[Committed]:
        token = next(number)
        for state in states:
            state.tokens.append(token)
        drafting.send_commits([(state, (token,)) for state in states], len(states))
        return trees.told[-1]

    for _ in range(UNTIL_READY):
        told = step()
    assert [each.catch_up for each in told] == [True] * KEPT_READY
    assert len(trees.told) == REST_AFTER + 2, "while nobody is drafted for, the source is told once that nobody is"
    resting = {state.key for state in states if state.draft.paused}
    assert {state.draft.num_unsent_tokens for state in states if state.draft.paused} == {UNTIL_READY - REST_AFTER}
    made.step_time = StepTimeModel(FREE)
    trees.lagging = {min(resting, key=lambda key: key.request_id)}
    while len(told) < len(states):
        told = step()
    steps = len(states[0].tokens) - before
    assert {len(each.token_ids) for each in told if each.key in resting} == {steps - REST_AFTER}
    assert all(each.max_nodes == 1 for each in told if each.key in resting)
    assert all(each.max_nodes > 1 for each in step() if each.key not in trees.lagging)
    assert {each.key for each in trees.told[-1] if each.max_nodes == 1} == trees.lagging
    trees.lagging = set()
    step()
    assert all(each.max_nodes > 1 for each in step())


def test_the_source_hears_of_a_request_that_rests_from_the_first_once_it_is_to_draft_for_it() -> None:
    class Begins(Listener):
        def __init__(self) -> None:
            super().__init__()
            self.begun: list[RequestKey] = []

        def begin(self, opening: RequestOpening) -> bool:
            self.begun.append(opening.key)
            return super().begin(opening)

    trees, made = Begins(), budget(FREE)
    drafting = SpeculationController(trees, KVCacheManager(CONFIG, 512), CONFIG, made)
    first, ends, stays = requests(3)
    drafting.begin(first)
    assert trees.begun == [first.key]
    made.step_time = StepTimeModel(DEAR)
    for _ in range(REST_AFTER + 1):
        drafting.send_commits([(first, (10,))], 1)
    drafting.begin(ends)
    drafting.begin(stays)
    drafting.send_commits([(state, (10,)) for state in (first, ends, stays)], 3)
    drafting.end(ends, FinishReason.STOP)
    assert (trees.begun, trees.ended) == ([first.key], [])
    made.step_time = StepTimeModel(FREE)
    for _ in range(9):
        drafting.send_commits([(state, (10,)) for state in (first, stays)], 2)
    assert trees.begun == [first.key, stays.key]
    assert {each.key for each in trees.told[-1]} == {first.key, stays.key}
    drafting.end(stays, FinishReason.STOP)
    assert [key for key, _ in trees.ended] == [stays.key]


def test_rows_are_asked_for_by_what_was_worth_them_and_hardly_ever_a_few_less() -> None:
    made, state = budget(FREE), requests(1)[0]
    state.draft.max_nodes = 64
    wishes = TreeSizer(made, 64)
    assert wishes.rows(state, 3, 1) == 64
    assert wishes.rows(requests(1)[0], 3, 16) == 1 + 4
    made.observe_nodes(1, nodes=20, depth=5)
    assert wishes.rows(state, 5, 1) == 1 + 30
    made.observe_nodes(1, nodes=5, depth=5)
    assert wishes.rows(state, 5, 1) == 1 + 30
    for _ in range(9):
        made.observe_nodes(1, nodes=40, depth=5)
    more = wishes.rows(state, 5, 1)
    assert 40 < more < 61
    made.observe_nodes(1, nodes=20, depth=5)
    assert wishes.rows(state, 5, 1) == more
    for _ in range(20):
        made.observe_nodes(1, nodes=5, depth=5)
    assert wishes.rows(state, 5, 1) < 27
    state.draft.max_nodes = 6
    assert wishes.rows(state, 5, 1) == 6
    state.draft.max_nodes, state.draft.adaptive = 64, False
    assert wishes.rows(state, 5, 1) == 64


def test_of_trees_that_are_verified_whole_no_node_is_asked_for_to_spare_unless_a_level_has_many() -> None:
    made, (state, other) = budget(FREE), requests(2)
    wishes, made.takes_whole = TreeSizer(made, 512), True
    state.draft.max_nodes = other.draft.max_nodes = 64
    for running, nodes in [(64, 3), (4, 12)] * 100:
        made.observe_nodes(running, nodes=nodes, depth=3)
    assert [wishes.rows(state, depth, 64) for depth in (3, 2)] == [1 + 3, 1 + 2]
    assert wishes.rows(other, 3, 4) == 1 + 14
