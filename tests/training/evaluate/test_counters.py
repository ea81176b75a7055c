"""Figures from sums."""

from __future__ import annotations

import random

import pytest

from training.evaluate.counters import DecodeCounts


def record(steps, *, seconds=0.0):
    """One answer whose decode steps had so many drafted tokens accepted each; None for a step without a tree."""
    accepted = {}
    for step in steps:
        if step is not None:
            accepted[str(step)] = accepted.get(str(step), 0) + 1
    answer = {
        "decoded": sum(1 + (step or 0) for step in steps),
        "steps": len(steps),
        "room": len(steps),
        "drafted": 4 * sum(step is not None for step in steps),
        "accepted": accepted,
        "seconds": seconds,
        "repeats": False,
    }
    return {"answers": [answer]}


def test_acceptance_length_is_one_and_what_each_position_adds():
    tally = DecodeCounts()
    tally.add(record([0, 2, 3, 0], seconds=0.9))
    tally.add(record([1, 3]))
    assert tally.acceptance_length == (9 + 6) / 6
    assert tally.by_position == [4 / 6, 3 / 6, 2 / 6]
    assert 1 + sum(tally.by_position) == pytest.approx(tally.acceptance_length)
    assert tally.with_tree == 1.0
    assert tally.seconds_per_token == pytest.approx(0.9 / 15)


def test_steps_without_a_tree_count_in_the_length_and_not_by_position():
    tally = DecodeCounts()
    tally.add(record([None, 2]))
    assert tally.acceptance_length == 2.0
    assert tally.by_position == [1.0, 1.0]
    assert tally.with_tree == 0.5


def test_nothing_has_no_figures():
    tally = DecodeCounts()
    tally.add({"answers": []})
    assert (tally.acceptance_length, tally.error, tally.with_tree, tally.seconds_per_token) == (None,) * 4


def test_the_standard_error_is_the_spread_of_the_figure_over_runs():
    draw = random.Random(1)

    def conversation():
        rate, steps = draw.random(), draw.randint(4, 30)
        return record([sum(draw.random() < rate for _ in range(3)) for _ in range(steps)])

    tallies = [DecodeCounts() for _ in range(300)]
    for tally in tallies:
        for _ in range(40):
            tally.add(conversation())
    lengths = [tally.acceptance_length for tally in tallies]
    mean = sum(lengths) / len(lengths)
    spread = (sum((length - mean) ** 2 for length in lengths) / (len(lengths) - 1)) ** 0.5
    told = sum(tally.error for tally in tallies) / len(tallies)
    assert told == pytest.approx(spread, rel=0.15)


def test_a_step_without_room_for_a_tree_is_not_held_against_it():
    cramped = record([1, None])
    cramped["answers"][0]["room"] = 1
    tally = DecodeCounts()
    tally.add(cramped)
    assert tally.with_tree == 1.0
    assert tally.acceptance_length == 1.5
