"""Waiting is suspended after three misses in a row and probed with growing pauses."""

from __future__ import annotations

from verify_service.draft_link.circuit_breaker import FIRST_BACKOFF, LAST_BACKOFF, MAX_MISSES, SILENCE, CircuitBreaker


def test_a_drafter_that_answers_is_always_waited_for() -> None:
    patience = CircuitBreaker()
    for now in range(10):
        patience.miss(now)
        patience.hit()
        assert patience.waits(now)


def test_three_misses_suspend_and_probes_double_the_pause() -> None:
    patience, now = CircuitBreaker(heard_at=99.9), 100.0
    for _ in range(MAX_MISSES):
        assert patience.waits(now)
        patience.miss(now)
    pauses = []
    for _ in range(8):
        patience.heard(now)
        assert not patience.waits(now)
        assert not patience.waits(patience.resume_at - 0.001)
        pauses.append(patience.resume_at - now)
        patience.heard_at = now = patience.resume_at
        assert patience.waits(now)
        patience.miss(now)
    assert pauses[:4] == [FIRST_BACKOFF * 2**i for i in range(4)]
    assert pauses[-1] == LAST_BACKOFF


def test_one_that_says_nothing_hangs_and_is_not_probed() -> None:
    patience = CircuitBreaker(heard_at=9.9)
    for _ in range(MAX_MISSES):
        assert not patience.hangs(10.0)
        patience.miss(10.0)
    assert not patience.hangs(10.0 + 0.9 * SILENCE)
    assert patience.hangs(10.0 + SILENCE)
    assert not patience.waits(10.0 + 100 * LAST_BACKOFF)
    patience.heard(60.0)
    assert patience.waits(60.0)
    assert not patience.hangs(61.0 + SILENCE)


def test_one_that_is_late_is_probed_and_does_not_hang() -> None:
    patience = CircuitBreaker(heard_at=9.9)
    for _ in range(MAX_MISSES):
        patience.miss(10.0)
    patience.heard(10.05)
    assert not patience.waits(10.1)
    assert patience.waits(10.0 + FIRST_BACKOFF)
    assert not patience.hangs(30.0)


def test_one_hit_restores_patience() -> None:
    patience = CircuitBreaker()
    for _ in range(6):
        patience.miss(0.0)
    patience.hit()
    assert patience.waits(0.0)
    patience.miss(0.0)
    patience.miss(0.0)
    assert patience.waits(0.0)


def test_one_that_is_heard_after_a_silence_is_waited_for_again() -> None:
    patience = CircuitBreaker()
    patience.heard(10.0)
    for _ in range(6):
        patience.miss(10.0)
    patience.heard(10.0 + 0.9 * SILENCE)
    assert not patience.waits(10.0)
    patience.heard(10.0 + 1.8 * SILENCE)
    assert not patience.waits(10.0), "it was never silent for so long"
    patience.heard(10.0 + 2.8 * SILENCE)
    assert patience.waits(10.0)
    for _ in range(MAX_MISSES):
        patience.miss(20.0)
    assert not patience.waits(20.0)
    assert patience.resume_at == 20.0 + FIRST_BACKOFF


def test_more_time_than_was_missed_is_worth_a_trial_at_once() -> None:
    patience = CircuitBreaker()
    patience.heard(0.9)
    for now in (1.0, 1.1, 1.2):
        patience.miss(now, 0.001)
    assert not patience.waits(1.3, 0.005)  # nothing was heard since
    patience.heard(1.25)
    assert not patience.waits(1.3)
    assert not patience.waits(1.3, 0.001)
    assert patience.waits(1.3, 0.005)
    patience.miss(1.3, 0.005)
    patience.heard(1.35)
    assert not patience.waits(1.4, 0.005)
    patience.hit()
    assert patience.waits(1.5, 0.0)


def test_one_that_is_silent_since_a_wait_is_not_waited_for_before_it_is_heard() -> None:
    patience = CircuitBreaker(heard_at=10.0)
    patience.miss(10.02, 0.02)
    assert not patience.waits(10.03)
    assert patience.drafts(10.03)
    patience.heard(10.04)
    assert patience.waits(10.04)
    patience.miss(10.06, 0.02)
    for _ in range(MAX_MISSES - 1):
        assert patience.drafts(99.0)
        patience.skip()
    assert patience.drafts(10.075)
    assert not patience.drafts(10.085), "so long would waits for it have been"
    patience.heard(10.09)
    assert patience.drafts(10.09)


def test_steps_without_trees_that_did_not_wait_are_no_silence() -> None:
    patience = CircuitBreaker(heard_at=10.0)
    for now in (11.0, 12.0):
        patience.miss(now)
        assert patience.waits(now) and patience.drafts(now)
    patience.miss(13.0)
    assert not patience.drafts(13.1)


def test_one_that_was_missed_once_hangs_once_it_was_asked_often_enough() -> None:
    patience = CircuitBreaker(heard_at=10.0)
    patience.miss(10.5, 0.02)
    assert not patience.hangs(10.5 + SILENCE)
    for _ in range(MAX_MISSES - 1):
        patience.skip()
    assert patience.hangs(10.5 + SILENCE)
    patience.heard(11.2)
    assert not patience.hangs(99.0)
