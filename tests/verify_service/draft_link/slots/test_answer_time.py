"""How long a proposer is known to take."""

from __future__ import annotations

from verify_service.draft_link.slots.answer_time import AnswerTimes, AskTimes


def times(*answers: tuple[float, bool]) -> float | None:
    known = AnswerTimes()
    for seconds, late in answers:
        known.add(seconds, late=late)
    return known.usual


def test_the_slowest_of_late_in_time_or_else_the_quickest_that_was_late() -> None:
    assert times() is None
    assert times((0.3, True), (0.1, True), (0.2, True)) == 0.1
    assert times((0.1, True), (0.05, False), (0.06, False), (0.04, False)) == 0.06
    assert times((9.0, False), *[(0.05, False)] * 8) == 0.05, "one that was held up is forgotten"
    assert times(*[(0.05, False)] * 8, *[(0.2, True)] * 7) == 0.05
    assert times(*[(0.05, False)] * 8, *[(0.2, True)] * 8) == 0.2, "it has become slower"


def test_each_state_is_answered_once_and_none_before_it_after_that() -> None:
    asked = AskTimes()
    for length in (4, 5, 7):
        asked.note(length, float(length))
    assert asked.answered(6, 100.0) is None
    assert asked.answered(5, 100.0) is None
    assert asked.answered(7, 7.5) == 0.5
    assert asked.answered(7, 8.0) is None
    asked.note(8, 8.0)
    asked.clear()
    assert asked.answered(8, 9.0) is None
