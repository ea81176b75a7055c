"""Changes are net: what came and went between two looks is not told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verify_service.kv_cache.cache_events import CacheChanges


@given(st.lists(st.lists(st.integers(0, 9), unique=True, max_size=6), max_size=12))
def test_a_reader_of_changes_knows_the_whole(steps: list[list[int]]) -> None:
    changes, held, known = CacheChanges(), set[int](), set[int]()
    for index, toggled in enumerate(steps):
        changes.evict(each for each in toggled if each in held)
        changes.add(each for each in toggled if each not in held)
        held ^= set(toggled)
        if index % 3 == 2:
            events = changes.take()
            added, evicted = (set(events.added), set(events.evicted)) if events else (set[int](), set[int]())
            assert known.isdisjoint(added)
            assert known.issuperset(evicted)
            known = (known - evicted) | added
            assert known == held
            assert changes.take() is None
