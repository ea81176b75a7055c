"""A start in its time is no news; a loss is, and what stays away."""

from __future__ import annotations

import logging

import pytest

from gateway.replicas.away_report import STARTING_SECONDS, AwayReport

REFUSED, LOADING = "connection refused", "the model is loading"


class Told:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self.now = 1000.0
        self.report = AwayReport("host:1", lambda: self.now)
        self._caplog = caplog

    @property
    def levels(self) -> list[str]:
        return [record.levelname for record in self._caplog.records]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    return Told(caplog)


def test_a_start_in_its_time_is_no_news(told: Told) -> None:
    for _ in range(20):
        told.report.failed(REFUSED, answered=False)
        told.report.failed(LOADING, answered=True)
        told.now += STARTING_SECONDS / 21
    assert told.levels == []


def test_who_stays_away_is_a_warning_once_and_who_loads_none(told: Told) -> None:
    told.now += STARTING_SECONDS
    for _ in range(5):
        told.report.failed(REFUSED, answered=False)
    for _ in range(5):
        told.report.failed(LOADING, answered=True)
    assert told.levels == ["WARNING", "INFO"]


def test_a_loss_is_told_at_once_and_the_start_that_follows_is_not(told: Told) -> None:
    told.report.lost("the session has broken")
    told.report.failed(REFUSED, answered=False)
    told.report.failed(LOADING, answered=True)
    assert told.levels == ["WARNING"]
    told.now += STARTING_SECONDS
    told.report.failed(REFUSED, answered=False)
    assert told.levels == ["WARNING", "WARNING"]
