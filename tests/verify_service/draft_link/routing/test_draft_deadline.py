"""The deadline follows measured steps, within its bounds."""

from __future__ import annotations

import random

import pytest

from verify_service.draft_link.routing.draft_deadline import FIRST_SECONDS, DraftDeadline


def step(deadline: DraftDeadline, seconds: float, *, plain: bool) -> None:
    deadline.step_begins(100.0, plain=plain)
    deadline.step_ends(100.0 + seconds)


def test_without_a_share_the_limit_counts() -> None:
    deadline = DraftDeadline(0.5, None)
    step(deadline, 0.001, plain=True)
    assert deadline.seconds == 0.5


def test_before_anything_was_measured() -> None:
    assert DraftDeadline(0.5, 0.25).seconds == FIRST_SECONDS
    assert DraftDeadline(0.0, 0.25).seconds == 0.0


def test_a_quarter_of_a_plain_step_up_to_the_limit() -> None:
    deadline = DraftDeadline(0.02, 0.25)
    for _ in range(50):
        step(deadline, 0.004, plain=True)
    assert deadline.seconds == pytest.approx(0.001)
    for _ in range(50):
        step(deadline, 1.0, plain=True)
    assert deadline.seconds == 0.02


def test_outliers_and_steps_with_trees_change_little() -> None:
    deadline, draw = DraftDeadline(1.0, 0.25), random.Random(1)
    for _ in range(100):
        step(deadline, 0.004 * draw.choice((0.9, 1.0, 1.1, 1.0, 25.0)), plain=True)
        step(deadline, 0.008, plain=False)
    assert 0.0008 < deadline.seconds < 0.0013


def test_the_quickest_step_with_trees_stands_in_for_plain_ones() -> None:
    deadline = DraftDeadline(1.0, 0.25)
    for seconds in (0.009, 0.008, 0.02):
        step(deadline, seconds, plain=False)
    assert deadline.seconds == pytest.approx(0.002)
    step(deadline, 0.004, plain=True)
    assert deadline.seconds == pytest.approx(0.001)


def test_an_end_without_a_beginning_is_no_measurement() -> None:
    deadline = DraftDeadline(1.0, 0.25)
    deadline.step_ends(5.0)
    step(deadline, 0.004, plain=True)
    deadline.step_ends(200.0)
    assert deadline.seconds == pytest.approx(0.001)


def test_a_step_that_is_lost_is_no_measurement() -> None:
    deadline = DraftDeadline(1.0, 0.25)
    step(deadline, 0.004, plain=True)
    deadline.step_begins(10.0, plain=True)
    deadline.step_lost()
    deadline.step_ends(200.0)
    assert deadline.seconds == pytest.approx(0.001)


def measured(*, plain: float, drafted: float, limit: float = 0.02, share: float | None = 0.25) -> DraftDeadline:
    deadline = DraftDeadline(limit, share)
    for _ in range(5):
        step(deadline, plain, plain=True)
        step(deadline, drafted, plain=False)
    return deadline


def test_trees_that_bring_much_are_worth_most_of_what_they_save() -> None:
    deadline = measured(plain=0.004, drafted=0.005)
    assert deadline.seconds_for(2.0) == pytest.approx(0.00525)  # three plain steps for one with a tree
    assert deadline.seconds_for(0.4) == pytest.approx(0.001)
    assert deadline.seconds_for(0.0) == deadline.seconds == pytest.approx(0.001)
    assert deadline.seconds_for(50.0) == 0.02


def test_steps_that_trees_make_slow_save_nothing() -> None:
    assert measured(plain=0.004, drafted=0.020).seconds_for(2.0) == pytest.approx(0.001)


def test_before_any_plain_step_nothing_is_known_to_be_saved() -> None:
    deadline = DraftDeadline(0.02, 0.25)
    step(deadline, 0.004, plain=False)
    assert deadline.seconds_for(3.0) == deadline.seconds == pytest.approx(0.001)


def test_a_limit_that_is_set_is_kept_to() -> None:
    assert measured(plain=0.004, drafted=0.005, limit=0.002, share=None).seconds_for(5.0) == 0.002


def test_rows_that_are_launched_already_are_worth_a_wait_for_all_that_trees_bring() -> None:
    deadline = measured(plain=0.004, drafted=0.020)
    assert deadline.seconds_behind(2.0) == pytest.approx(0.006)
    assert deadline.seconds_behind(0.0) == deadline.seconds == pytest.approx(0.001)
    assert deadline.seconds_behind(50.0) == 0.02
    assert DraftDeadline(0.02, 0.25).seconds_behind(2.0) == 0.02, "no step is known"
    assert measured(plain=0.004, drafted=0.005, limit=0.002, share=None).seconds_behind(5.0) == 0.002
