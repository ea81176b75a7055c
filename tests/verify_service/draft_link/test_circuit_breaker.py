"""Waiting is suspended after three timeouts in a row and probed with growing pauses."""

from __future__ import annotations

from verify_service.draft_link.circuit_breaker import FIRST_BACKOFF, LAST_BACKOFF, MAX_TIMEOUTS, SILENCE, CircuitBreaker


def test_a_drafter_that_answers_is_always_waited_for() -> None:
    breaker = CircuitBreaker()
    for now in range(10):
        breaker.on_timeout(now)
        breaker.on_success()
        assert breaker.allows_wait(now)


def test_three_timeouts_suspend_and_probes_double_the_pause() -> None:
    breaker, now = CircuitBreaker(last_message_at=99.9), 100.0
    for _ in range(MAX_TIMEOUTS):
        assert breaker.allows_wait(now)
        breaker.on_timeout(now)
    pauses = []
    for _ in range(8):
        breaker.on_message(now)
        assert not breaker.allows_wait(now)
        assert not breaker.allows_wait(breaker.probe_at - 0.001)
        pauses.append(breaker.probe_at - now)
        breaker.last_message_at = now = breaker.probe_at
        assert breaker.allows_wait(now)
        breaker.on_timeout(now)
    assert pauses[:4] == [FIRST_BACKOFF * 2**i for i in range(4)]
    assert pauses[-1] == LAST_BACKOFF


def test_one_that_says_nothing_hangs_and_is_not_probed() -> None:
    breaker = CircuitBreaker(last_message_at=9.9)
    for _ in range(MAX_TIMEOUTS):
        assert not breaker.is_unresponsive(10.0)
        breaker.on_timeout(10.0)
    assert not breaker.is_unresponsive(10.0 + 0.9 * SILENCE)
    assert breaker.is_unresponsive(10.0 + SILENCE)
    assert not breaker.allows_wait(10.0 + 100 * LAST_BACKOFF)
    breaker.on_message(60.0)
    assert breaker.allows_wait(60.0)
    assert not breaker.is_unresponsive(61.0 + SILENCE)


def test_one_that_is_late_is_probed_and_does_not_hang() -> None:
    breaker = CircuitBreaker(last_message_at=9.9)
    for _ in range(MAX_TIMEOUTS):
        breaker.on_timeout(10.0)
    breaker.on_message(10.05)
    assert not breaker.allows_wait(10.1)
    assert breaker.allows_wait(10.0 + FIRST_BACKOFF)
    assert not breaker.is_unresponsive(30.0)


def test_one_hit_closes_the_breaker() -> None:
    breaker = CircuitBreaker()
    for _ in range(6):
        breaker.on_timeout(0.0)
    breaker.on_success()
    assert breaker.allows_wait(0.0)
    breaker.on_timeout(0.0)
    breaker.on_timeout(0.0)
    assert breaker.allows_wait(0.0)


def test_one_that_is_heard_after_a_silence_is_waited_for_again() -> None:
    breaker = CircuitBreaker()
    breaker.on_message(10.0)
    for _ in range(6):
        breaker.on_timeout(10.0)
    breaker.on_message(10.0 + 0.9 * SILENCE)
    assert not breaker.allows_wait(10.0)
    breaker.on_message(10.0 + 1.8 * SILENCE)
    assert not breaker.allows_wait(10.0), "it was never silent for so long"
    breaker.on_message(10.0 + 2.8 * SILENCE)
    assert breaker.allows_wait(10.0)
    for _ in range(MAX_TIMEOUTS):
        breaker.on_timeout(20.0)
    assert not breaker.allows_wait(20.0)
    assert breaker.probe_at == 20.0 + FIRST_BACKOFF


def test_more_time_than_was_missed_is_worth_a_trial_at_once() -> None:
    breaker = CircuitBreaker()
    breaker.on_message(0.9)
    for now in (1.0, 1.1, 1.2):
        breaker.on_timeout(now, 0.001)
    assert not breaker.allows_wait(1.3, 0.005)  # nothing was heard since
    breaker.on_message(1.25)
    assert not breaker.allows_wait(1.3)
    assert not breaker.allows_wait(1.3, 0.001)
    assert breaker.allows_wait(1.3, 0.005)
    breaker.on_timeout(1.3, 0.005)
    breaker.on_message(1.35)
    assert not breaker.allows_wait(1.4, 0.005)
    breaker.on_success()
    assert breaker.allows_wait(1.5, 0.0)


def test_one_that_is_silent_since_a_wait_is_not_waited_for_before_it_is_heard() -> None:
    breaker = CircuitBreaker(last_message_at=10.0)
    breaker.on_timeout(10.02, 0.02)
    assert not breaker.allows_wait(10.03)
    assert breaker.allows_requests(10.03)
    breaker.on_message(10.04)
    assert breaker.allows_wait(10.04)
    breaker.on_timeout(10.06, 0.02)
    for _ in range(MAX_TIMEOUTS - 1):
        assert breaker.allows_requests(99.0)
        breaker.on_skip()
    assert breaker.allows_requests(10.075)
    assert not breaker.allows_requests(10.085), "so long would waits for it have been"
    breaker.on_message(10.09)
    assert breaker.allows_requests(10.09)


def test_steps_without_trees_that_did_not_wait_are_no_silence() -> None:
    breaker = CircuitBreaker(last_message_at=10.0)
    for now in (11.0, 12.0):
        breaker.on_timeout(now)
        assert breaker.allows_wait(now) and breaker.allows_requests(now)
    breaker.on_timeout(13.0)
    assert not breaker.allows_requests(13.1)


def test_one_that_was_missed_once_hangs_once_it_was_asked_often_enough() -> None:
    breaker = CircuitBreaker(last_message_at=10.0)
    breaker.on_timeout(10.5, 0.02)
    assert not breaker.is_unresponsive(10.5 + SILENCE)
    for _ in range(MAX_TIMEOUTS - 1):
        breaker.on_skip()
    assert breaker.is_unresponsive(10.5 + SILENCE)
    breaker.on_message(11.2)
    assert not breaker.is_unresponsive(99.0)
