from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipstream_kernels.models.page_pool import OutOfPagesError, PagePool

PAGES = 6


class PoolMachine(RuleBasedStateMachine):
    """The pool against a plain dictionary of holders."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(PAGES)
        self.held: dict[int, int] = {}

    @rule(count=st.integers(0, PAGES + 1))
    def allocate(self, count: int) -> None:
        if count > PAGES - len(self.held):
            with pytest.raises(OutOfPagesError):
                self.pool.allocate(count)
            return
        pages = self.pool.allocate(count)
        assert len(set(pages)) == count and not set(pages) & self.held.keys()
        self.held |= dict.fromkeys(pages, 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def retain(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.held)))
        self.pool.retain(page)
        self.held[page] += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(sorted(self.held)))
        self.held[page] -= 1
        assert self.pool.release(page) == (self.held[page] == 0)
        if not self.held[page]:
            del self.held[page]

    @rule(page=st.integers(-1, PAGES))
    def pages_not_in_use_are_refused(self, page: int) -> None:
        if page not in self.held:
            with pytest.raises(ValueError, match=f"page {page} is not in use"):
                self.pool.retain(page)
            with pytest.raises(ValueError, match=f"page {page} is not in use"):
                self.pool.release(page)

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.free_count == PAGES - len(self.held)
        assert all(self.pool.references(page) == count for page, count in self.held.items())


TestPagePool = PoolMachine.TestCase
TestPagePool.settings = settings(max_examples=50, stateful_step_count=30)


def test_whoever_asks_is_told_of_pages_that_become_free() -> None:
    freed: list[int] = []
    pool = PagePool(4, freed.append)
    pages = pool.allocate(3)
    pool.retain(pages[1])
    pool.release_all(pages)
    assert freed == [0, 2]
    pool.release(pages[1])
    assert freed == [0, 2, 1]


def test_release_all_and_lowest_pages_first() -> None:
    pool = PagePool(3)
    assert pool.allocate(2) == [0, 1]
    pool.release_all([0, 1])
    assert pool.free_count == 3
    with pytest.raises(ValueError, match="count is -1"):
        pool.allocate(-1)
