"""Figures of made-up answers whose figures are known, and what holds of all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.answer import Answer
from benchmarks.serving.crowd import Played
from benchmarks.serving.measures import Bounds, least_ratio, measures, message_gaps, tokens_by_second

NONE = Bounds()


def answer(sent, *messages, due=None, failure=""):
    """Of messages (time, tokens)."""
    times, counts = [at for at, _ in messages], [count for _, count in messages]
    return Answer(0, sent if due is None else due, sent, 99.0, failure, tuple(times), tuple(counts), sum(counts))


@st.composite
def answers(draw):
    sent = draw(st.floats(100, 110))
    gaps = draw(st.lists(st.floats(0, 2), min_size=1, max_size=8))
    counts = draw(st.lists(st.integers(1, 6), min_size=len(gaps), max_size=len(gaps)))
    failure = draw(st.sampled_from(["", "", "", "HTTP 503: full", "connection: reset"]))
    return answer(sent, *((sent + sum(gaps[: i + 1]), count) for i, count in enumerate(counts)), failure=failure)


TWO = (answer(10.0, (10.5, 1), (10.6, 2), (10.8, 2)), answer(10.25, (10.35, 1), (11.35, 10), due=10.15))


def test_two_answers():
    found = measures(Played(10.0, TWO), Bounds(300.0))
    assert found["answers"] == 2
    assert found["tokens"] == 16
    assert found["seconds"] == pytest.approx(1.35)
    assert found["tokens_per_second"] == pytest.approx(16 / 1.35)
    assert found["ttft_ms_p50"] == pytest.approx((500 + 200) / 2)
    assert found["tpot_ms_p50"] == pytest.approx((75 + 100) / 2)
    assert found["itl_ms_p50"] == pytest.approx(200.0)
    assert found["tokens_a_message"] == pytest.approx(16 / 5)
    assert found["good_share"] == 0.5
    assert found["goodput"] == pytest.approx(11 / 1.35)
    assert found["sent_late_ms_p99"] == pytest.approx(99.0)
    assert found["tokens_by_second"] is None
    assert (found["tokens_a_step"], found["accepted"]) == (None, None)


def test_steps_after_the_first():
    told = replace(TWO[0], verify_steps=3, drafted=8, accepted=2)
    found = measures(Played(10.0, (told,)), NONE)
    assert (found["tokens_a_step"], found["accepted"]) == (2.0, 0.25)


def test_failures_are_counted_by_kind_and_nothing_else_is_said_of_them():
    failed = [answer(10.0, (10.1, 1), failure=each) for each in ("HTTP 503: a", "HTTP 503: b", "connection: reset")]
    found = measures(Played(10.0, (*failed, answer(10.0))), Bounds(tpot_ms=1.0))
    assert found["failures"] == {"HTTP 503": 2, "connection: reset": 1, "no token": 1}
    assert (found["answers"], found["tokens"], found["tokens_per_second"]) == (0, 0, None)
    assert found["good_share"] == 0.0
    assert all(found[f"{name}_ms_p50"] is None for name in ("ttft", "tpot", "itl"))


@given(st.lists(answers(), min_size=1), st.floats(-50, 50))
def test_figures_do_not_depend_on_the_clock(played, shift):
    moved = [
        replace(each, due=each.due + shift, sent=each.sent + shift, times=tuple(at + shift for at in each.times))
        for each in played
    ]
    here, there = (
        measures(Played(begin, tuple(each)), Bounds(500.0, 300.0))
        for begin, each in ((99.0, played), (99.0 + shift, moved))
    )
    for name in ("answers", "failures", "tokens", "tokens_a_message"):
        assert here[name] == there[name]
    for name in ("tokens_per_second", "ttft_ms_p50", "ttft_ms_p99", "itl_ms_p99"):
        assert (here[name] is None) == (there[name] is None)
        assert (here[name] or 0.0) == pytest.approx(there[name] or 0.0, rel=1e-6, abs=1e-6)


@given(st.lists(answers(), min_size=1))
def test_percentiles_lie_among_the_values_and_goodput_below_the_rate(played):
    found = measures(Played(99.0, tuple(played)), Bounds(700.0, 400.0))
    whole = [each for each in played if each.whole]
    assert found["answers"] + sum(found["failures"].values()) == len(played)
    if whole:
        assert min(each.ttft for each in whole) * 1e3 <= found["ttft_ms_p50"] + 1e-6
        assert found["ttft_ms_p50"] <= found["ttft_ms_p99"] + 1e-9
        assert found["goodput"] <= found["tokens_per_second"] + 1e-9
        gaps = [1e3 * gap for each in whole for gap in message_gaps(each)]
        assert found["itl_ms_p99"] is None or found["itl_ms_p99"] <= max(gaps) + 1e-6


@given(st.lists(answers(), min_size=1), st.integers(1, 40))
def test_seconds_hold_each_token_once(played, seconds):
    found = tokens_by_second(Played(99.0, tuple(played)), seconds)
    early = sum(c for each in played for at, c in zip(each.times, each.counts, strict=True) if at - 99.0 < seconds)
    assert len(found) == seconds
    assert sum(found) == pytest.approx(early)
    assert measures(Played(99.0, tuple(played)), NONE, seconds)["tokens_per_second"] == pytest.approx(early / seconds)


def test_the_worst_second_is_found():
    assert least_ratio([10, 9, 0], [10, 10, 0]) == 0.9
    assert least_ratio([10, 9], []) is None
