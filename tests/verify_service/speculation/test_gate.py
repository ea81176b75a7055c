"""When drafters rest, and when a few requests look whether trees pay."""

from __future__ import annotations

from itertools import pairwise

import pytest

from verify_service.speculation.gate import (
    BARRED,
    FORGET_EARLY,
    FORGET_FIRST,
    OPEN_AFTER,
    PROBE_COST,
    PROBE_EVERY,
    PROBE_STEPS,
    READY_BEFORE,
    REST_AFTER,
    SpeculationGate,
)


def opened() -> SpeculationGate:
    """One after trees that paid."""
    gate = SpeculationGate()
    gate.open()
    return gate


def probes(gate: SpeculationGate, steps: int, cost: float = 0.0) -> list[int]:
    """Steps at which probes begin that cost so many plain steps for each of theirs."""
    begun = []
    for step in range(1, steps + 1):
        gate.step(profitable=False)
        gate.charge(cost)
        if gate.probe_begins:
            begun.append(step)
    return begun


def test_drafters_rest_after_a_few_steps_and_at_once_no_longer() -> None:
    gate = SpeculationGate()
    for _ in range(REST_AFTER):
        gate.step(profitable=False)
    assert not gate.paused
    gate.step(profitable=False)
    assert gate.paused
    gate.step(profitable=True)
    assert not gate.paused


def test_a_few_are_kept_ready_from_before_a_probe_to_its_end() -> None:
    gate, ready, probing = opened(), [], []
    for step in range(1, 2 * PROBE_EVERY - READY_BEFORE):
        gate.step(profitable=False)
        ready += [step] if gate.keeps_ready else []
        probing += [step] if gate.probing else []
    assert ready == list(range(PROBE_EVERY - READY_BEFORE, PROBE_EVERY + PROBE_STEPS))
    assert probing == list(range(PROBE_EVERY, PROBE_EVERY + PROBE_STEPS))


def test_probes_that_cost_much_or_find_nothing_come_more_rarely() -> None:
    found = probes(opened(), 80 * PROBE_EVERY)
    pauses = [(after - before) // PROBE_EVERY for before, after in pairwise((0, *found))]
    assert pauses[:14] == [1] * 4 + [2] * 4 + [4] * 4 + [8] * 2 and max(pauses) * PROBE_EVERY == FORGET_FIRST
    for cost, steps in ((0.3, PROBE_STEPS), (0.5, 3), (20.0, 1)):
        dear = probes(SpeculationGate(), int(5 * steps * cost / PROBE_COST), cost=cost)
        pauses = [after - before for before, after in pairwise(dear)]
        assert pauses[0] == max(PROBE_EVERY, int(steps * cost / PROBE_COST)), "its cost is a small part of the time"
        assert cost < 1.0 or len(set(pauses)) == 1


def test_what_trees_of_all_cost_is_forgotten_ever_more_rarely_and_first_until_they_paid_for_long() -> None:
    gate = SpeculationGate()
    forgotten = [step for step in range(1, 8 * FORGET_FIRST) if gate.step(profitable=False)]
    pauses = [after - before for before, after in pairwise((0, *forgotten))]
    assert pauses == [FORGET_EARLY << time for time in range(len(pauses))] and len(pauses) > 5
    for _ in range(FORGET_FIRST + 1):
        assert not gate.step(profitable=True)
    assert [step for step in range(1, 2 * FORGET_FIRST) if gate.step(profitable=False)] == [FORGET_FIRST]


def test_where_drafters_say_what_rounds_take_a_start_need_not_find_out() -> None:
    gate = SpeculationGate()
    gate.know_costs()
    assert [step for step in range(1, 4 * FORGET_FIRST) if gate.step(profitable=False)] == [
        FORGET_FIRST,
        3 * FORGET_FIRST,
    ]


def test_a_probe_that_has_learned_much_is_followed_by_another_at_once() -> None:
    gate, begun = opened(), []
    for step in range(1, 3 * PROBE_EVERY):
        gate.step(profitable=False, learned=gate.probe_ends and len(begun) < 3)
        begun += [step] if gate.probe_begins else []
    third = PROBE_EVERY + 2 * PROBE_STEPS
    assert begun == [PROBE_EVERY, PROBE_EVERY + PROBE_STEPS, third, third + PROBE_EVERY]


def test_what_making_drafters_ready_takes_is_a_part_of_a_probes_cost() -> None:
    gate, begun = opened(), []
    for step in range(1, 8 * FORGET_FIRST):
        gate.step(profitable=False)
        gate.slow(0.5)
        if gate.probe_begins:
            begun.append(step)
    slowed = 0.5 * (READY_BEFORE + PROBE_STEPS)
    assert begun[1] - begun[0] == int(slowed / PROBE_COST), "none of it is forgotten, nor counted where nobody is ready"


def test_passes_that_are_quicker_by_chance_make_no_probe_earlier() -> None:
    gate, begun = opened(), []
    for step in range(1, 3 * PROBE_EVERY):
        gate.step(profitable=False)
        gate.slow(-0.5)
        begun += [step] if gate.probe_begins else []
    assert begun == [PROBE_EVERY, 2 * PROBE_EVERY]


def test_a_moment_in_which_trees_seem_to_pay_does_not_hide_what_probes_cost() -> None:
    gate = opened()
    for _ in range(PROBE_EVERY):
        gate.step(profitable=False)
    gate.charge(20.0)
    gate.step(profitable=True)
    steps = 0
    while not gate.probe_begins:
        gate.step(profitable=False)
        steps += 1
    assert steps == int(20.0 / PROBE_COST)
    for _ in range(REST_AFTER + 1):
        gate.step(profitable=True)
    assert [step for step in range(1, PROBE_EVERY + 1) if gate.step(profitable=False) or gate.probe_begins] == [
        PROBE_EVERY
    ], "trees that pay for long do"


def test_what_a_probes_last_step_waited_is_counted_though_it_is_told_as_the_probe_is_over() -> None:
    gate, begun, untold = opened(), [], [False]
    for step in range(1, 20 * PROBE_EVERY):
        gate.step(profitable=False)
        untold.append(gate.probing)
        if untold.pop(0):
            gate.charge(3.0, late=True)
        begun += [step] if gate.probe_begins else []
    asked = 2
    assert [after - before for before, after in pairwise(begun)] == [int(3.0 * asked / PROBE_COST)] * 4


def test_no_probe_is_due_as_long_as_trees_could_not_pay_and_one_soon_after_they_could() -> None:
    gate = opened()
    gate.judge(could_pay=False)
    assert not probes(gate, 3 * PROBE_EVERY)
    assert gate.rests
    gate.judge(could_pay=True)
    assert probes(gate, PROBE_EVERY) == [READY_BEFORE]


def test_a_probe_that_finds_that_trees_could_not_pay_is_over_and_still_paid_for() -> None:
    gate = opened()
    for _ in range(PROBE_EVERY):
        gate.step(profitable=False)
    gate.charge(20.0)
    gate.judge(could_pay=False)
    assert not (gate.probing or gate.keeps_ready)
    for _ in range(PROBE_EVERY):
        gate.step(profitable=False)
    gate.judge(could_pay=True)
    assert probes(gate, int(20.0 / PROBE_COST))[:1] == [int(20.0 / PROBE_COST) - PROBE_EVERY]


def test_a_pause_is_over_once_trees_paid_at_one_load_for_some_steps() -> None:
    gate = opened()
    for _ in range(REST_AFTER + 1):
        gate.step(profitable=gate.opens(64, promising=False))
    for requests in (24, 24, 64, 64, 24, 24, 64, 64):
        gate.step(profitable=gate.opens(requests, promising=True))
    assert gate.paused
    opens = []
    while gate.paused:
        opens.append(gate.opens(64, promising=True))
        assert not gate.rests, "the next step is weighed, too"
        gate.step(profitable=opens[-1])
    assert opens == [False] * (OPEN_AFTER - 3) + [True]


@pytest.mark.parametrize("waited", [True, False])
@pytest.mark.parametrize(("lost", "steps"), [(3.0, 300), (-3.0, 0), (1e6, BARRED)])
def test_trees_that_cost_more_than_they_brought_pay_for_it_before_they_are_tried_again(
    lost: float, steps: int, *, waited: bool
) -> None:
    gate = opened()
    gate.step(profitable=gate.opens(64, promising=True))
    gate.charge(lost) if waited else gate.slow(lost)
    for _ in range(REST_AFTER):
        gate.step(profitable=gate.opens(64, promising=False))
    assert gate.opens(16, promising=True), "fewer requests are another load"
    tries = 0
    while not gate.opens(100, promising=True):
        gate.step(profitable=False)
        tries += 1
    assert tries == pytest.approx(steps, abs=OPEN_AFTER)
