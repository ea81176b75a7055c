"""A rate starts at its prior, follows what was matched, and forgets."""

from __future__ import annotations

import pytest

from verify_service.core.acceptance_history import AcceptanceHistory


def accepted(rate: float, steps: int = 200) -> AcceptanceHistory:
    history = AcceptanceHistory()
    for step in range(steps):
        history.observe(1, int((step + 1) * rate) - int(step * rate))
    return history


def test_a_rate_starts_at_its_prior_and_learns() -> None:
    assert AcceptanceHistory().rate(0.7) == pytest.approx(0.7)
    assert accepted(0.2).rate(0.7) < 0.35
    assert accepted(1.0).rate(0.1) > 0.75


def test_half_of_what_was_seen_of_a_request_fades() -> None:
    history = accepted(0.1)
    before = history.rate(0.7)
    for _ in range(6):
        history.fade()
    assert before < 0.3 < 0.6 < history.rate(0.7) < 0.7


def test_a_level_that_was_not_verified_counts_by_its_chance() -> None:
    history = AcceptanceHistory(last_accept_length=3)
    for _ in range(200):
        history.expect(0.25)
    assert history.rate(0.7) == pytest.approx(0.25, abs=0.07)
    assert history.last_accept_length == 3
