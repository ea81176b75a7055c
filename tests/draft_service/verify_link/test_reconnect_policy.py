"""How often a link is tried, and how often the log says why it is not there."""

from __future__ import annotations

import logging

import pytest

from draft_service.verify_link.reconnect_policy import LAST_REFUSAL_SECONDS, Attempts

DAY = 24 * 3600.0


def days_of(attempts: Attempts, clock: list[float], reason: str, days: float, *, refused: bool) -> int:
    """Attempts of some days, all of which fail for that reason."""
    count, until = 0, clock[0] + days * DAY
    while clock[0] < until:
        clock[0] += attempts.failed("not attached", reason, level=logging.ERROR, refused=refused)
        count += 1
    return count


def test_a_refusal_is_said_once_and_then_seldom(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    attempts = Attempts(logging.getLogger("test"), clock=lambda: clock[0])
    tried = days_of(attempts, clock, "vocab_size", 1, refused=True)
    assert tried < 2.1 * DAY / LAST_REFUSAL_SECONDS
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "not attached, trying again: vocab_size"
    assert set(said[1:]) == {"not attached, still trying: vocab_size"}
    assert len(said) < 35, "each hour once at last, and some more in the first"
    caplog.clear()
    days_of(attempts, clock, "hidden_size", 1 / 24, refused=True)
    assert "trying again: hidden_size" in caplog.records[0].getMessage()
    assert len(caplog.records) < 8


def test_an_absence_is_said_once_and_tried_often(caplog: pytest.LogCaptureFixture) -> None:
    clock = [0.0]
    attempts = Attempts(logging.getLogger("test"), clock=lambda: clock[0])
    days_of(attempts, clock, "vocab_size", 1, refused=True)
    caplog.clear()
    tried = days_of(attempts, clock, "connection refused", 1 / 24, refused=False)
    assert tried > 1800
    assert len(caplog.records) == 1
    attempts.succeeded()
    assert attempts.reason == ""
