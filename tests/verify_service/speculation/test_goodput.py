"""Trees grow where they pay off and go where they do not."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kernels.level_choice import best_levels
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance_history import AcceptanceHistory
from verify_service.core.step_time_model import PROFILED_CONTEXT, StepTimeModel
from verify_service.speculation import goodput
from verify_service.speculation.acceptance_model import AcceptanceModel, ProposedTree
from verify_service.speculation.gate import (
    FORGET_EARLY,
    FORGET_FIRST,
    FORGET_LAST,
    PROBE_COST,
    PROBE_EVERY,
    PROBE_STEPS,
    READY_BEFORE,
    REST_AFTER,
)
from verify_service.speculation.goodput import DepthCandidate, GoodputOptimizer

FLAT = [(1, 1, 1.0e-3), (1, 64, 1.1e-3)]
STEEP = [(1, 1, 1.0e-3), (1, 2, 2.0e-3), (1, 64, 64.0e-3)]


def accepted(rate: float, steps: int = 200) -> AcceptanceHistory:
    history = AcceptanceHistory()
    for step in range(steps):
        history.observe(1, int((step + 1) * rate) - int(step * rate))
    return history


def budget(table: list[tuple[int, int, float]], *, wait: float = 0.0) -> GoodputOptimizer:
    made = GoodputOptimizer(StepTimeModel(table), AcceptanceModel())
    for _ in range(200):
        made.observe_wait(wait * 6, asked=1, arrived=1, levels=4)
    return made


def test_free_rows_are_used() -> None:
    assert budget(FLAT).choose_depths([DepthCandidate(accepted(0.9), 63)], 1)[0] >= 8


def test_no_levels_are_counted_on_that_a_drafter_never_makes() -> None:
    made = budget(FLAT)
    shallow, other = DepthCandidate(accepted(0.9), 63, "shallow"), DepthCandidate(accepted(0.9), 63, "other")
    made.learn_drafter("shallow", (), 3)
    made.learn_drafter("other", (), 0)
    assert made.choose_depths([shallow], 1) == [3]
    assert made.choose_depths([other], 1)[0] >= 8


def test_dear_rows_are_not() -> None:
    assert budget(STEEP).choose_depths([DepthCandidate(accepted(0.9), 63)], 1) == [0]


def test_waiting_too_long_ends_speculation() -> None:
    assert budget(FLAT, wait=1e-5).choose_depths([DepthCandidate(accepted(0.6), 63)], 1) > [0]
    assert budget(FLAT, wait=5e-3).choose_depths([DepthCandidate(accepted(0.6), 63)], 1) == [0]


def test_the_better_accepted_request_gets_the_deeper_tree() -> None:
    table = [(1, 1, 1.0e-3), (1, 8, 1.2e-3), (1, 64, 20e-3)]
    good, poor = budget(table).choose_depths([DepthCandidate(accepted(0.9), 63), DepthCandidate(accepted(0.3), 63)], 2)
    assert good > poor


def test_a_request_that_is_right_more_often_does_not_stop_the_others() -> None:
    others = [DepthCandidate(accepted(0.55), 63) for _ in range(7)]
    made = budget([(1, 1, 1.0e-3), (1, 64, 1.5e-3)], wait=5e-5)
    alone = made.choose_depths(others, 8)
    beside = made.choose_depths([*others, DepthCandidate(accepted(0.98, 2000), 63)], 8)
    assert min(alone) >= 1
    assert min(beside) >= 1
    assert max(beside) <= max(alone) + 2


def test_load_takes_nodes_away() -> None:
    table = [(1, 1, 1.0e-3), (1, 8, 1.2e-3), (1, 16, 2.5e-3), (1, 64, 12e-3)]
    alone = budget(table).choose_depths([DepthCandidate(accepted(0.7), 63)], 1)[0]
    crowd = budget(table).choose_depths([DepthCandidate(accepted(0.7), 63) for _ in range(16)], 16)
    assert alone > max(crowd)


@given(rates=st.lists(st.floats(0, 1), min_size=1, max_size=8), depth=st.integers(1, 20))
def test_nobody_gets_more_than_it_may_have(rates: list[float], depth: int) -> None:
    granted = budget(FLAT).choose_depths([DepthCandidate(accepted(rate, 20), depth) for rate in rates], len(rates))
    assert len(granted) == len(rates)
    assert all(0 <= levels <= depth for levels in granted)


def test_plain_decoding_is_probed_now_and_then() -> None:
    made = budget(STEEP)
    made.gate.open()
    asked = [made.choose_depths([DepthCandidate(accepted(0.1), 63)], 1)[0] > 0 for _ in range(4 * PROBE_EVERY)]
    assert sum(asked[: PROBE_EVERY - 1]) == 0
    assert sum(asked) == pytest.approx(3 * PROBE_STEPS, abs=PROBE_STEPS)


def test_weighing_ahead_grants_what_is_granted_without_it() -> None:
    table = [(1, 1, 1.0e-3), (1, 8, 1.1e-3), (1, 9, 2.0e-3), (1, 64, 9.0e-3)]
    ahead, plain = budget(table), budget(table)
    granted = []
    for right in [1] * 20 + [0] * 60 + [3] * 40:
        each = []
        for made in (ahead, plain):
            history = accepted(0.5 + 0.1 * right, 20)
            each.append(made.choose_depths([DepthCandidate(history, 6), DepthCandidate(accepted(0.6), 3)], 2 + right))
            tree = ProposedTree(("", False), TokenTree.chain(range(6)), history)
            made.acceptance.observe([(tree, range(right))])
            made.observe_nodes(3, nodes=6, depth=6)
            made.step_time.observe(2, 6, 1e-3 * (1 + right))
        ahead.prepare()
        assert each[0] == each[1]
        granted.append(each[0])
    assert len({tuple(levels) for levels in granted}) > 1


def test_steps_that_ask_for_nothing_weigh_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, bidders, weighed = budget(FLAT), [DepthCandidate(accepted(0.9), 63)], []
    made.choose_depths(bidders, 1)
    made.prepare()
    monkeypatch.setattr(goodput, "best_levels", lambda *args: weighed.append(args) or best_levels(*args))
    for _ in range(5):
        made.observe_pass(1, 0, 1.5e-3, PROFILED_CONTEXT)
        made.prepare()
    assert not weighed
    for steps in range(1, 5):
        made.choose_depths(bidders, 1)
        made.observe_pass(1, 0, 1.5e-3, PROFILED_CONTEXT)
        made.prepare()
        assert len(weighed) == 1 + steps, "at once, as prices have changed, and then once a step"


def test_steps_that_rest_count_as_others_and_something_is_weighed_in_one_of_a_few() -> None:
    made, bidders = budget(STEEP), [DepthCandidate(accepted(0.1), 63)]
    made.gate.open()
    weighed, asked = [], []
    for step in range(1, PROBE_EVERY + PROBE_STEPS + 1):
        if not made.rests(1):
            weighed.append(step)
            asked += [step] if any(made.choose_depths(bidders, 1)) else []
    assert asked == list(range(PROBE_EVERY, PROBE_EVERY + PROBE_STEPS))
    resting = [step for step in weighed if REST_AFTER + 1 < step < PROBE_EVERY - READY_BEFORE]
    assert [after - before for before, after in pairwise(resting)] == [READY_BEFORE] * (len(resting) - 1)
    assert len(resting) > 1


def test_passes_beside_drafters_that_are_made_ready_are_no_price_of_passes() -> None:
    made, bidders = budget(STEEP), [DepthCandidate(accepted(0.1), 63)]
    made.gate.open()
    for step in range(1, PROBE_EVERY):
        made.choose_depths(bidders, 1)
        made.observe_pass(1, 0, 1.5e-3 if step >= PROBE_EVERY - READY_BEFORE else 1e-3, PROFILED_CONTEXT)
    assert made.step_time.seconds(1) == pytest.approx(1e-3)
    made.observe_pass(1, 1, 4e-3, PROFILED_CONTEXT)
    assert made.step_time.seconds(1, 1) > 2.1e-3, "those with nodes are: only probes have any"


def test_a_few_waits_that_take_long_are_not_the_price_of_trees() -> None:
    made, bidders = budget(FLAT, wait=1e-5), [DepthCandidate(accepted(0.6), 63)]
    for _ in range(6):
        made.observe_wait(1.0, asked=1, arrived=1, levels=4)
    assert made.choose_depths(bidders, 1) > [0]
    made.observe_wait(1.0, asked=1, arrived=1, levels=4)
    assert made.choose_depths(bidders, 1) == [0]


def test_what_a_drafter_captures_for_a_number_of_requests_and_levels_is_not_the_price() -> None:
    made, many = budget(FLAT, wait=1e-5), [DepthCandidate(accepted(0.6), 63)] * 16
    for levels in range(1, 9):
        for _ in range(2):
            made.observe_wait(1.0, asked=16, arrived=16, levels=levels)
    assert any(made.choose_depths(many, 16))
    for levels in range(1, 9):
        made.observe_wait(1.0, asked=16, arrived=16, levels=levels)
    assert not any(made.choose_depths(many, 16))


def test_what_many_requests_wait_for_is_remembered_while_few_ask() -> None:
    made = budget(FLAT, wait=1e-5)
    few, many = ([DepthCandidate(accepted(0.6), 63)] * number for number in (4, 16))
    assert any(made.choose_depths(many, 16))
    for _ in range(9):
        made.observe_wait(0.1, asked=16, arrived=16, levels=4)
    for _ in range(20):
        made.observe_wait(1e-5, asked=4, arrived=4, levels=4, running=16)
    assert any(made.choose_depths(few, 16))
    assert not any(made.choose_depths(many, 16))
    assert not any(made.choose_depths(few, 16, many[4:]))
    for _ in range(FORGET_FIRST):
        made.choose_depths(few, 16, many[4:])
    made.observe_wait(1e-5, asked=4, arrived=4, levels=4, running=16)
    assert any(made.choose_depths(many, 16))


def test_few_that_could_have_trees_ask_for_none_that_do_not_pay_while_others_catch_up() -> None:
    made = budget(FLAT)
    few, many = ([DepthCandidate(accepted(0.6), 63)] * number for number in (4, 16))
    for _ in range(9):
        made.observe_wait(1e-3, asked=4, arrived=4, levels=4, running=16)
        made.observe_wait(1e-5, asked=16, arrived=16, levels=4)
    assert not any(made.choose_depths(few, 16, many[4:]))
    assert made.is_profitable
    assert any(made.choose_depths(many, 16))
    assert not any(made.choose_depths(few, 16))
    assert not made.is_profitable


def test_what_a_busy_step_waits_for_is_not_held_against_a_request_alone() -> None:
    made, one = budget(FLAT, wait=1e-5), [DepthCandidate(accepted(0.6), 63)]
    for _ in range(20):
        made.observe_wait(1.0, asked=1, arrived=1, levels=4, running=64)
    assert not any(made.choose_depths(one, 64))
    assert any(made.choose_depths(one, 1))


def test_trees_that_pay_a_little_go_on_but_do_not_begin() -> None:
    bidders = [DepthCandidate(accepted(0.6), 63)]
    made, late = budget(FLAT, wait=1e-5), budget(FLAT, wait=2.4e-4)
    assert made.choose_depths(bidders, 1) > [0]
    for _ in range(9):
        made.observe_wait(2.4e-4 * 6, asked=1, arrived=1, levels=4)
    assert made.choose_depths(bidders, 1) > [0]
    assert late.choose_depths(bidders, 1) == [0]
    for _ in range(9):
        made.observe_wait(4e-4 * 6, asked=1, arrived=1, levels=4)
    assert made.choose_depths(bidders, 1) == [0]


def test_wide_trees_of_few_requests_are_not_held_against_narrow_ones_of_many() -> None:
    table = [(1, 1, 1.0e-3), (1, 64, 1.2e-3), (16, 16, 1.3e-3), (16, 64, 1.5e-3), (16, 256, 4.0e-3)]
    made = budget(table, wait=5e-6)
    for _ in range(100):
        made.observe_nodes(1, nodes=40, depth=4)
    assert made.nodes_per_level(1) > 9
    assert made.nodes_per_level(16) == 1
    many = [DepthCandidate(accepted(0.6), 63)] * 16
    assert any(made.choose_depths(many, 16))
    for _ in range(100):
        made.observe_nodes(16, nodes=40, depth=4)
    assert not any(made.choose_depths(many, 16))


def test_requests_have_more_nodes_where_the_same_rows_are_of_fewer_requests() -> None:
    steep = [(1, 1, 1.0e-3), (1, 64, 1.1e-3), (16, 16, 1.3e-3), (16, 64, 6.0e-3)]
    alone = budget(steep).choose_depths([DepthCandidate(accepted(0.8), 63)], 1)
    crowd = budget(steep).choose_depths([DepthCandidate(accepted(0.8), 63)] * 16, 16)
    assert alone[0] > 3
    assert not any(crowd)


def test_while_many_catch_up_trees_that_are_not_worth_the_longer_wait_are_not_asked_for() -> None:
    made = budget([(1, 1, 1.0e-3), (1, 64, 1.6e-3)])
    ready, late = ([DepthCandidate(accepted(0.9), 63) for _ in range(8)] for _ in range(2))
    assert all(made.choose_depths(ready, 16, late)), "nothing is known of longer waits"
    for _ in range(4):
        made.observe_wait(6e-3, asked=8, arrived=8, levels=4, running=16, catching_up=True)
    assert made.choose_depths(ready, 16, late) == [0] * 8
    assert made.is_profitable and not made.gate.paused, "drafters go on to catch up"
    assert all(made.choose_depths(ready, 16, late[:4])), "few hold up nobody"
    steps = next(step for step in range(1000) if any(made.choose_depths(ready, 16, late)))
    assert 20 < steps < 200, "who never catches up is waited for again"
    assert not made.gate.paused


def test_fixed_trees_in_a_step_make_others_dearer() -> None:
    table = [(1, 1, 1.0e-3), (1, 8, 1.1e-3), (1, 9, 2.0e-3), (1, 64, 12e-3)]
    bidders = [DepthCandidate(accepted(0.8), 63)]
    assert budget(table).choose_depths(bidders, 2)[0] > budget(table).choose_depths(bidders, 2, nodes=5)[0]


def trials(made: GoodputOptimizer, steps: int, wait: float) -> list[int]:
    """Steps at which trees were tried that take `wait` seconds a level, probes aside."""
    found = []
    for step in range(steps):
        granted = made.choose_depths([DepthCandidate(accepted(0.6), 63)], 1)[0]
        if made.is_profitable:
            found.append(step)
            made.observe_wait(wait * (2 + granted), asked=1, arrived=1, levels=granted)
    return found


def test_trees_that_cost_too_much_are_tried_again_ever_more_rarely() -> None:
    made = budget(FLAT, wait=1e-3)
    tried = trials(made, 3 * FORGET_LAST, 1e-3)
    begun = [step for step in tried if step - 1 not in tried]
    pauses = [after - before for before, after in pairwise((0, *begun))]
    assert pauses[0] == pytest.approx(FORGET_EARLY, abs=16)
    assert all(FORGET_EARLY * 2**time <= pause for time, pause in enumerate(pauses))
    assert pauses[-4:] == pytest.approx([FORGET_LAST / 2**time for time in (3, 2, 1, 0)], abs=16)
    assert pauses[1] > 1 / PROBE_COST, "a trial that cost steps is paid for before the next one"
    assert len(tried) <= 12 * len(begun)


def test_trees_that_paid_for_long_are_soon_tried_again() -> None:
    made = budget(FLAT, wait=1e-3)
    trials(made, FORGET_LAST, 1e-3)
    assert len(trials(made, FORGET_LAST + 2 * FORGET_FIRST, 1e-5)) > FORGET_FIRST
    for _ in range(9):
        made.observe_wait(1e-3 * 6, asked=1, arrived=1, levels=4)
    assert trials(made, 2 * FORGET_FIRST, 1e-5)[0] == pytest.approx(FORGET_FIRST, abs=16)


def test_a_tree_that_one_of_many_requests_missed_is_not_the_share_that_comes() -> None:
    made, many = budget(FLAT), [DepthCandidate(accepted(0.5), 63)] * 16
    before = made.choose_depths(many, 16)
    assert any(before)
    for _ in range(20):
        made.observe_wait(0.0, asked=1, arrived=0, levels=1, running=16)
    assert made.choose_depths(many, 16) == before
    for _ in range(60):
        made.observe_wait(0.0, asked=16, arrived=0, levels=1, running=16)
    assert not any(made.choose_depths(many, 16))


def test_a_wait_in_which_the_drafter_catches_up_with_many_is_no_price() -> None:
    made = budget(FLAT, wait=1e-3)
    before = made.draft_time.seconds(1, 1, 1)
    for _ in range(20):
        made.observe_wait(1.0, asked=1, arrived=1, levels=1, catching_up=True)
    assert made.draft_time.seconds(1, 1, 1) == before
    for _ in range(20):
        made.observe_wait(1.0, asked=1, arrived=1, levels=1)
    assert made.draft_time.seconds(1, 1, 1) > 10 * before


def test_a_tree_that_is_verified_whole_has_a_node_a_level_at_least() -> None:
    """Half of what was verified was not worth it: cut trees of three levels would pay, whole ones do not."""
    made = budget([(1, 1, 1.0e-3), (16, 16, 1.0e-3), (16, 48, 1.9e-3), (16, 256, 9.0e-3)], wait=1e-6)
    many = [DepthCandidate(accepted(0.6), 63)] * 16
    for _ in range(100):
        made.observe_nodes(16, nodes=1, depth=4)
    cut = made.choose_depths(many, 16)
    made.takes_whole = True
    whole = made.choose_depths([*many], 16)
    assert sum(cut) > sum(whole)
