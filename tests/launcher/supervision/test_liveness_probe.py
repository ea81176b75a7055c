"""When a service counts as lost, by a clock and answers of the test's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from launcher.supervision import liveness_probe
from launcher.supervision.liveness_probe import MIN_FAILURES, LivenessProbe

LIMIT = 20.0
START = 40.0


class Service:
    """Answers or lets the asker wait for the whole time that it has."""

    def __init__(self, monkeypatch):
        self.now, self.answering, self.serving, self.running = 1000.0, True, True, True
        self.command = SimpleNamespace(address="nowhere:1", tls=None)
        monkeypatch.setattr(liveness_probe, "HealthConnection", self.connection)
        monkeypatch.setattr(liveness_probe, "time", SimpleNamespace(monotonic=lambda: self.now))

    def connection(self, address, tls):
        assert (address, tls) == ("nowhere:1", None)
        return SimpleNamespace(serves=self.serves)

    def serves(self, timeout):
        self.now += 0 if self.answering else timeout
        return self.serving if self.answering else None


@pytest.fixture
def service(monkeypatch):
    return Service(monkeypatch)


def look(one, service, times):
    """What each of some looks in a row says, five seconds apart."""
    said = []
    for _ in range(times):
        said.append(one.failed(LIMIT, START))
        service.now += 5.0
    return said


def test_one_that_answers_is_never_lost(service):
    assert not any(look(LivenessProbe(service), service, 50))


def test_one_that_falls_silent_is_lost_after_the_limit(service):
    one = LivenessProbe(service)
    look(one, service, 2)
    service.answering, since = False, service.now
    assert look(one, service, 3) == [False, False, True]
    assert since + LIMIT <= service.now <= since + LIMIT + 10.0


def test_an_answer_in_between_starts_anew(service):
    one = LivenessProbe(service)
    for _ in range(10):
        service.answering = True
        assert not one.failed(LIMIT, START)
        service.answering = False
        assert not any(look(one, service, 2))


def test_one_that_never_answered_has_the_time_of_a_start_more(service):
    service.answering, since = False, service.now
    one = LivenessProbe(service)
    while not one.failed(LIMIT, START):
        service.now += 5.0
    assert since + LIMIT + START <= service.now <= since + LIMIT + START + 10.0


def test_one_that_has_yet_to_serve_has_that_time_too_when_it_has_answered(service):
    one = LivenessProbe(service)
    service.serving = False
    assert not any(look(one, service, 50))
    service.answering, since = False, service.now
    while not one.failed(LIMIT, START):
        service.now += 5.0
    assert since + LIMIT + START <= service.now <= since + LIMIT + START + 10.0


def test_one_that_has_served_is_starting_no_more(service):
    one = LivenessProbe(service)
    look(one, service, 1)
    service.serving = False
    look(one, service, 1)
    service.answering = False
    assert look(one, service, 3) == [False, False, True]


def test_the_askers_own_absence_counts_as_one_miss(service):
    one = LivenessProbe(service)
    one.failed(LIMIT, START)
    service.answering = False
    one.failed(LIMIT, START)
    service.now += 1000.0
    assert look(one, service, MIN_FAILURES - 2) == [False] * (MIN_FAILURES - 2)
    assert one.failed(LIMIT, START)


def test_one_that_has_ended_is_not_lost(service):
    one = LivenessProbe(service)
    one.failed(LIMIT, START)
    service.answering = service.running = False
    assert not any(look(one, service, 50))
