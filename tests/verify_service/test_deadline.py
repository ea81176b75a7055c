"""The deadline follows measured steps, within its bounds."""

from __future__ import annotations

import random

import pytest

from verify_service.deadline import FIRST_SECONDS, Deadline


def step(deadline: Deadline, seconds: float, *, plain: bool) -> None:
    deadline.step_begins(100.0, plain=plain)
    deadline.step_ends(100.0 + seconds)


def test_without_a_share_the_limit_counts() -> None:
    deadline = Deadline(0.5, None)
    step(deadline, 0.001, plain=True)
    assert deadline.seconds == 0.5


def test_before_anything_was_measured() -> None:
    assert Deadline(0.5, 0.25).seconds == FIRST_SECONDS
    assert Deadline(0.0, 0.25).seconds == 0.0


def test_a_quarter_of_a_plain_step_up_to_the_limit() -> None:
    deadline = Deadline(0.02, 0.25)
    for _ in range(50):
        step(deadline, 0.004, plain=True)
    assert deadline.seconds == pytest.approx(0.001)
    for _ in range(50):
        step(deadline, 1.0, plain=True)
    assert deadline.seconds == 0.02


def test_outliers_and_steps_with_trees_change_little() -> None:
    deadline, draw = Deadline(1.0, 0.25), random.Random(1)
    for _ in range(100):
        step(deadline, 0.004 * draw.choice((0.9, 1.0, 1.1, 1.0, 25.0)), plain=True)
        step(deadline, 0.008, plain=False)
    assert 0.0008 < deadline.seconds < 0.0013


def test_the_quickest_step_with_trees_stands_in_for_plain_ones() -> None:
    deadline = Deadline(1.0, 0.25)
    for seconds in (0.009, 0.008, 0.02):
        step(deadline, seconds, plain=False)
    assert deadline.seconds == pytest.approx(0.002)
    step(deadline, 0.004, plain=True)
    assert deadline.seconds == pytest.approx(0.001)


def test_an_end_without_a_beginning_is_no_measurement() -> None:
    deadline = Deadline(1.0, 0.25)
    deadline.step_ends(5.0)
    step(deadline, 0.004, plain=True)
    deadline.step_ends(200.0)
    assert deadline.seconds == pytest.approx(0.001)


def test_a_step_that_is_lost_is_no_measurement() -> None:
    deadline = Deadline(1.0, 0.25)
    step(deadline, 0.004, plain=True)
    deadline.step_begins(10.0, plain=True)
    deadline.step_lost()
    deadline.step_ends(200.0)
    assert deadline.seconds == pytest.approx(0.001)
