"""What steps wait for trees: the latest of a size, the nearest size, and other sizes after a change."""

from __future__ import annotations

import pytest

from slipstream_kernels.draft_protocol.records import RoundCost
from verify_service.core.step_time_model import StepTimeModel
from verify_service.speculation.draft_time import DraftTimeModel

PASSES = [(1, 1, 4e-3), (16, 16, 5e-3), (64, 64, 8e-3)]
SAID = [RoundCost(requests, 2, seconds) for requests, seconds in ((1, 1e-3), (16, 2e-3), (64, 6e-3))]


def model_of(*waits: tuple[int, float], steps: int = 0) -> DraftTimeModel:
    """`waits` has requests, all of which ask for 2 levels, and seconds."""
    model = DraftTimeModel(StepTimeModel(PASSES))
    see(model, *waits, steps=steps)
    return model


def see(model: DraftTimeModel, *waits: tuple[int, float], steps: int = 0) -> None:
    for requests, seconds in waits:
        model.count_step()
        model.observe(seconds, asked=requests, running=requests, levels=2)
    for _ in range(steps):
        model.count_step()


def seconds(model: DraftTimeModel, requests: int) -> float:
    return model.seconds(requests, requests, 2)


def test_before_any_wait_one_is_guessed_that_grows_as_passes_do() -> None:
    assert seconds(model_of(), 64) == pytest.approx(2 * seconds(model_of(), 1))
    assert 0.0 < seconds(model_of(), 1) < 4e-3


def test_the_first_wait_of_a_size_counts_and_the_nearest_size_tells_of_others() -> None:
    model = model_of((1, 2e-3), (64, 9e-3))
    assert seconds(model, 1) == pytest.approx(2e-3)
    assert seconds(model, 64) == pytest.approx(9e-3)
    assert seconds(model, 48) == pytest.approx(9e-3, rel=0.2)


def test_what_is_captured_at_first_is_not_the_price_but_what_stays_is() -> None:
    model = model_of((1, 1.0), (1, 1.0))
    assert seconds(model, 1) < 4e-3
    see(model, (1, 1.0))
    assert seconds(model, 1) == pytest.approx(1.0)


def test_behind_passes_the_first_uses_of_a_size_do_not_outweigh_what_is_known() -> None:
    model = model_of((1, 1e-3))
    before = seconds(model, 64)
    for _ in range(2):
        model.count_step()
        model.observe(3 * before, asked=64, running=64, levels=2, behind=True)
        assert seconds(model, 64) == pytest.approx(before)
    model.count_step()
    model.observe(3 * before, asked=64, running=64, levels=2, behind=True)
    assert seconds(model, 64) == pytest.approx(3 * before)


def test_of_waits_seen_long_ago_few_outlive_new_ones() -> None:
    recent, old = (model_of(*[(1, 2e-3)] * 13, steps=steps) for steps in (0, 100))
    for model in (recent, old):
        see(model, *[(1, 3e-3)] * 3)
    assert seconds(recent, 1) == pytest.approx(2e-3)
    assert seconds(old, 1) == pytest.approx(3e-3)


@pytest.mark.parametrize(("now", "kept"), [(2.2e-3, True), (20e-3, False), (0.2e-3, False)])
def test_a_drafter_that_is_another_makes_what_other_sizes_took_out_of_date(now: float, *, kept: bool) -> None:
    model = model_of(*[(64, 6e-3)] * 5, *[(1, 2e-3)] * 5, steps=100)
    see(model, *[(1, now)] * 5)
    assert (seconds(model, 64) == pytest.approx(6e-3)) == kept
    assert seconds(model, 1) == pytest.approx(now)


def test_to_begin_drafting_behind_passes_anew_is_no_price_of_going_on_but_to_draft_so_no_more_is() -> None:
    model = model_of()
    for _ in range(20):
        model.observe(9e-3, asked=16, running=16, levels=2)
        model.observe(1e-3, asked=16, running=16, levels=2, behind=True)
    assert seconds(model, 16) == pytest.approx(1e-3)
    see(model, *[(16, 9e-3)] * 30)
    assert seconds(model, 16) == pytest.approx(9e-3)


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_first_waits_are_beginnings_too_where_drafters_draft_behind_passes(forgotten: bool) -> None:
    model = model_of()
    guessed = seconds(model, 16)
    model.expect_behind(True)
    if forgotten:
        model.observe(9e-3, asked=16, running=16, levels=2, behind=True)
        model.forget()
    for _ in range(8):
        model.expect_behind(True)
        model.observe(9e-3, asked=16, running=16, levels=2)
    assert seconds(model, 16) == guessed
    model.observe(9e-3, asked=16, running=16, levels=2)
    assert seconds(model, 16) == pytest.approx(9e-3)


@pytest.mark.parametrize(("pause", "counts"), [(9, False), (4, True)])
def test_after_a_pause_drafting_begins_anew_where_drafters_draft_behind_passes(pause: int, counts: bool) -> None:
    model = model_of()
    model.expect_behind(True)
    model.observe(1e-3, asked=16, running=16, levels=2, behind=True)
    see(model, *[(16, 9e-3)] * 8, steps=pause - 1)
    for _ in range(20):
        see(model, *[(16, 9e-3)] * 4, steps=pause - 1)
    assert seconds(model, 16) == pytest.approx(9e-3 if counts else 1e-3)


def told(*waits: tuple[int, float], steps: int = 0) -> DraftTimeModel:
    """As `model_of`, of a drafter that says what its rounds take."""
    model = model_of()
    model.learn_costs("head", SAID)
    model.proposers = {"head"}
    see(model, *waits, steps=steps)
    return model


def test_what_a_drafter_says_holds_before_any_wait() -> None:
    assert [seconds(told(), requests) for requests in (1, 16, 64)] == pytest.approx([1e-3, 2e-3, 6e-3])


def test_what_the_host_takes_beyond_a_round_grows_as_passes_do_and_not_as_rounds() -> None:
    model = told((64, 8e-3))
    assert seconds(model, 64) == pytest.approx(8e-3)
    assert seconds(model, 1) == pytest.approx(1e-3 + 2e-3 / 2)


def test_the_part_of_a_round_that_nobody_waits_for_is_that_of_all_rounds() -> None:
    model = told((64, 3e-3))
    assert seconds(model, 64) == pytest.approx(3e-3)
    assert seconds(model, 1) == pytest.approx(0.5e-3)


@pytest.mark.parametrize("lie", [1e-6, 1e-3, 1e3])
def test_what_steps_wait_outweighs_what_a_drafter_says(lie: float) -> None:
    model = model_of()
    model.learn_costs("head", [cost._replace(seconds=lie * cost.seconds) for cost in SAID])
    see(model, *[(16, 2e-3)] * 3)
    assert seconds(model, 16) == pytest.approx(2e-3)


def test_a_wait_that_was_given_up_says_nothing_of_how_quick_rounds_are() -> None:
    model = told()
    for waited, least in ((1e-4, 1e-3), (3e-3, 3e-3)):
        model.observe(waited, asked=1, running=1, levels=2, came=False)
        assert seconds(model, 1) == pytest.approx(least)


def test_the_least_of_word_and_waits_is_known_once_both_are_there() -> None:
    assert told().least_waits(1, 1, (2,)) is None
    assert model_of((1, 1e-3)).least_waits(1, 1, (2,)) is None
    assert told((1, 5e-3)).least_waits(1, 1, (2,)) == pytest.approx([1e-3])
    assert told((1, 4e-4)).least_waits(1, 1, (2,)) == pytest.approx([4e-4])


def test_a_drafter_that_says_otherwise_is_another() -> None:
    model = told(*[(16, 9e-3)] * 5)
    model.learn_costs("head", SAID)
    assert seconds(model, 16) == pytest.approx(9e-3)
    model.learn_costs("head", [cost._replace(seconds=2 * cost.seconds) for cost in SAID])
    assert seconds(model, 16) == pytest.approx(4e-3)
    guessed = seconds(model_of(), 16)
    model.learn_costs("head", ())
    assert seconds(model, 16) == guessed


def test_waits_for_a_drafter_that_says_nothing_tell_nothing_of_one_that_does() -> None:
    model = told((16, 3e-3))
    model.proposers = {"other"}
    guessed = seconds(model, 16)
    see(model, *[(16, 9e-3)] * 5)
    assert seconds(model, 16) == pytest.approx(9e-3) != guessed
    model.proposers = {"head"}
    assert seconds(model, 16) == pytest.approx(3e-3)


def test_the_slowest_drafter_is_waited_for() -> None:
    model = told()
    model.learn_costs("slow", [cost._replace(seconds=3 * cost.seconds) for cost in SAID])
    model.proposers = {"head", "slow"}
    assert seconds(model, 16) == pytest.approx(6e-3)
