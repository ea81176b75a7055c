"""What trees promise is kept beside what the same steps yield without."""

from __future__ import annotations

import pytest

from verify_service.core.acceptance_history import AcceptanceHistory
from verify_service.core.step_time_model import StepTimeModel
from verify_service.speculation.acceptance_model import AcceptanceModel
from verify_service.speculation.forecast import Forecast
from verify_service.speculation.goodput import DepthCandidate, GoodputOptimizer

FLAT = [(1, 1, 1.0e-3), (1, 64, 1.1e-3)]
STEEP = [(1, 1, 1.0e-3), (1, 2, 2.0e-3), (1, 64, 64.0e-3)]


def accepted(matched: float) -> AcceptanceHistory:
    return AcceptanceHistory(tried=1000.0, matched=1000 * matched)


def test_the_promise_is_of_the_levels_granted_and_their_wait() -> None:
    made = GoodputOptimizer(StepTimeModel(FLAT), AcceptanceModel())
    for _ in range(200):
        made.observe_wait(4e-5, asked=1, arrived=1, levels=4)
    history = accepted(0.8)
    (depth,) = made.choose_depths([DepthCandidate(history, 4)], 1)
    rate, known = history.rate(0.7), made.forecast
    assert depth == 4 and (known.steps, known.drafted_steps) == (1, 1)
    assert known.tokens == pytest.approx(1 + sum(rate**level for level in range(1, 5)), rel=1e-6)
    wait = made.draft_time.waits(1, 1, (4,))[0]
    assert wait > 1e-5 and known.seconds == pytest.approx(made.step_time.seconds(1, 4) + wait)
    assert (known.plain_tokens, known.plain_seconds) == (1, pytest.approx(1e-3))
    made.choose_depths([DepthCandidate(history, 4)], 1)
    assert known.steps == 2 and known.plain_seconds == pytest.approx(2e-3)


def test_steps_that_have_no_trees_promise_what_plain_ones_do() -> None:
    made = GoodputOptimizer(StepTimeModel(STEEP), AcceptanceModel())
    for _ in range(80):
        made.choose_depths([DepthCandidate(accepted(0.3), 63)] * 3, 3)
        made.rests(3)
    known = made.forecast
    assert known.steps >= 80 and known.drafted_steps == 0
    assert (known.tokens, known.seconds) == (known.plain_tokens, known.plain_seconds) == (
        3 * known.steps, pytest.approx(known.steps * made.step_time.seconds(3))
    )  # fmt: skip


def test_where_all_catch_up_nothing_is_promised() -> None:
    made = GoodputOptimizer(StepTimeModel(FLAT), AcceptanceModel())
    late = [DepthCandidate(accepted(0.9), 63)]
    made.choose_depths(late, 1)
    made.choose_depths([], 1, others=late)
    made.choose_depths([], 1)
    assert (made.forecast.steps, made.forecast.drafted_steps) == (2, 1)


def test_sums() -> None:
    known = Forecast()
    known.add(2, 0.5)
    known.add(2, 0.5, (5.0, 0.75))
    assert known == Forecast(2, 1, 7.0, 1.25, 4.0, 1.0)
    assert known.gain_since(Forecast()) == pytest.approx(7 / 1.25 / 4)
    assert known.gain_since(Forecast(1, 0, 2.0, 0.5, 2.0, 0.5)) == pytest.approx(5 / 0.75 * 0.5 / 2)
    assert known.gain_since(known) is None
