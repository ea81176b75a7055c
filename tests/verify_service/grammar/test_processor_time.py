"""What questions about tokens may take."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from verify_service.grammar import processor_time
from verify_service.grammar.processor_time import ProcessorTime


class Clocks:
    """Of the wall and of a processor, which go on as they are told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.processor = 100.0
        self.asked = 0
        monkeypatch.setattr(processor_time, "_known", processor_time._Known())
        monkeypatch.setattr(processor_time.time, "perf_counter", lambda: self.wall)
        monkeypatch.setattr(processor_time.time, "thread_time", self._spent)

    def _spent(self) -> float:
        self.asked += 1
        return self.processor

    def question(self, wall: float, processor: float) -> Callable[[str], str]:
        """One that takes so long."""

        def answer(whom: str) -> str:
            self.wall += wall
            self.processor += processor
            return f"{whom} answers"

        return answer


def test_quick_questions_cost_nothing_and_make_up_for_slow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, budget = Clocks(monkeypatch), ProcessorTime(each=1.0, excess=3.0)
    assert budget.ask(clocks.question(0.5, 0.5), "she") == "she answers"
    asked = clocks.asked
    for _ in range(8):
        budget.ask(clocks.question(3.0, 3.0), "she", 2)
        budget.ask(clocks.question(0.001, 0.001), "she")
        assert not budget.is_spent
    assert asked == 1
    for _ in range(2):
        budget.ask(clocks.question(2.6, 2.6), "she")
    assert budget.is_spent
    budget.ask(clocks.question(0.0, 0.0), "she", 1)
    assert not budget.is_spent


def test_no_time_passes_while_others_have_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, budget = Clocks(monkeypatch), ProcessorTime(each=1.0, excess=2.0)
    for _ in range(5):
        budget.ask(clocks.question(1000.0, 0.9), "he")
        assert not budget.is_spent
    budget.ask(clocks.question(1000.0, 3.5), "he")
    assert budget.is_spent


def test_what_a_thread_has_done_before_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, budget = Clocks(monkeypatch), ProcessorTime(each=1.0, excess=2.0)
    budget.ask(clocks.question(0.1, 0.1), "he")
    clocks.question(50.0, 50.0)("somebody else")
    budget.ask(clocks.question(1000.0, 1.5), "he")
    assert not budget.is_spent


def test_questions_that_raise_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, budget = Clocks(monkeypatch), ProcessorTime(each=1.0, excess=2.0)

    def fail(_: object) -> None:
        clocks.question(4.0, 4.0)("it")
        raise ValueError("an error")

    with pytest.raises(ValueError, match="an error"):
        budget.ask(fail, None)
    assert budget.is_spent


def test_by_the_machines_own_clocks() -> None:
    budget = ProcessorTime(each=1e-9, excess=0.05)
    budget.ask(time.sleep, 0.2)
    assert not budget.is_spent
    end = time.thread_time() + 0.06

    def work(_: object) -> None:
        while time.thread_time() < end:
            pass

    budget.ask(work, None)
    assert budget.is_spent
