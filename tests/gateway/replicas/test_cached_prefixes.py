"""What is known of a cache follows numbered news, within bounds."""

from __future__ import annotations

import random

import pytest

from gateway.replicas import cached_prefixes
from gateway.replicas.cached_prefixes import CachedPrefixes


def test_after_a_gap_nothing_counts_until_a_snapshot() -> None:
    known = CachedPrefixes()
    assert known.take(1, [5], [], snapshot=False)
    assert known.count([5]) == 0
    assert known.take(2, [5, 6], [], snapshot=True)
    assert known.take(3, [7], [5], snapshot=False)
    assert [known.count([name]) for name in (5, 6, 7)] == [0, 1, 1]
    assert known.count([6, 7, 8]) == 2
    assert not known.take(5, [8], [], snapshot=False)
    assert len(known) == 0
    assert known.take(6, [9], [], snapshot=False)
    assert known.count([9]) == 0
    assert known.take(7, [4], [], snapshot=True)
    assert known.count([4, 9]) == 1


def test_what_requests_will_leave_counts_until_they_have() -> None:
    known = CachedPrefixes()
    known.take(1, [1], [], snapshot=True)
    known.expect([2, 3])
    assert known.count([1, 2, 3, 4]) == 3
    known.take(2, [2], [], snapshot=False)
    known.unexpect([2, 3])
    assert known.count([1, 2, 3, 4]) == 2


def test_a_service_that_tells_too_much_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_prefixes, "MOST_NAMES", 10)
    known = CachedPrefixes()
    known.take(1, range(8), [], snapshot=True)
    known.take(2, range(8, 40), [], snapshot=False)
    known.take(3, range(40, 50), [], snapshot=False)
    assert len(known) == 10
    known.take(4, [50], [0, 1], snapshot=False)
    assert known.count([50]) == 1


def test_lies_are_answered_with_some_number() -> None:
    chance = random.Random(1)
    for _ in range(200):
        known = CachedPrefixes()
        names = list(range(chance.randrange(20)))
        known.take(1, [name for name in names if chance.random() < 0.5], [99], snapshot=True)
        assert 0 <= known.count(names) <= len(names)
