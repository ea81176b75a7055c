"""Judging drafters: as often wrong as said, and no oftener."""

from __future__ import annotations

import numpy as np
import pytest

from launcher.rollout.acceptance_stats import (
    FIRST_BATCH,
    LEAST_BATCHES,
    MOST_BATCHES,
    Arm,
    Estimate,
    quantile,
    significantly_below,
)


def watched(draw, rate, looks, steps_a_look=40):
    """An arm whose requests accept each of three tokens with a probability of their own, for 80 steps each."""
    arm = Arm()
    own = rate
    for step in range(looks):
        if step % 2 == 0:
            own = min(1.0, max(0.0, rate + draw.uniform(-0.2, 0.2)))
        arm.add(steps_a_look, int(draw.binomial(3 * steps_a_look, own)))
    return arm


def test_batches_grow_with_what_they_hold_and_lose_nothing():
    arm = Arm()
    for _ in range(1000):
        arm.add(5, 7)
        assert len(arm.batches) < MOST_BATCHES
    assert (arm.steps, arm.accepted, arm.tokens) == (5000, 7000, 12000)
    estimate = arm.estimate()
    assert estimate.batches >= MOST_BATCHES // 2
    assert arm.size > FIRST_BATCH
    assert estimate.length == pytest.approx(2.4)
    assert estimate.error == pytest.approx(0.0, abs=1e-9)


def test_few_batches_tell_nothing():
    arm = Arm()
    for _ in range(LEAST_BATCHES - 1):
        arm.add(100, 50)
    assert arm.estimate() is None
    arm.add(0, 0)
    assert arm.estimate() is None
    arm.add(100, 50)
    assert arm.estimate().length == 1.5


def test_the_error_is_the_spread_of_the_estimate():
    draw = np.random.default_rng(2)
    estimates = [watched(draw, 0.5, 160).estimate() for _ in range(150)]
    lengths = [each.length for each in estimates]
    mean = sum(lengths) / len(lengths)
    spread = (sum((length - mean) ** 2 for length in lengths) / len(lengths)) ** 0.5
    assert sum(each.error for each in estimates) / len(estimates) == pytest.approx(spread, rel=0.2)


def test_equal_drafters_are_seldom_told_apart_and_worse_ones_always():
    draw = np.random.default_rng(3)
    pairs = [(watched(draw, 0.5, 60).estimate(), watched(draw, 0.5, 60).estimate()) for _ in range(200)]
    wrong = sum(significantly_below(new, old, margin=0.0, confidence=0.95) for new, old in pairs)
    assert 1 <= wrong <= 24
    assert not any(significantly_below(new, old, margin=0.1, confidence=0.99) for new, old in pairs)
    worse = [watched(draw, 0.3, 60).estimate() for _ in range(50)]
    assert all(significantly_below(each, pairs[0][1], margin=0.05, confidence=0.99) for each in worse)
    assert not any(significantly_below(pairs[0][1], each, margin=0.05, confidence=0.99) for each in worse)


def test_what_has_no_spread_is_compared_as_it_is():
    new, old = Estimate(1.0, 0.0, 20), Estimate(1.1, 0.0, 20)
    assert significantly_below(new, old, margin=0.05, confidence=0.99)
    assert not significantly_below(new, old, margin=0.1, confidence=0.99)


@pytest.mark.parametrize(
    ("confidence", "freedom", "value"),
    [(0.9, 10, 1.3722), (0.99, 9, 2.8214), (0.999, 20, 3.5518), (0.9999, 15, 4.8801), (0.5, 30, 0.0)],
)
def test_quantiles_are_those_of_the_tables(confidence, freedom, value):
    assert quantile(confidence, freedom) == pytest.approx(value, rel=0.002, abs=1e-9)
