from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from slipstream_kernels.paged_kv import OutOfPagesError, PagedKV, PagePool

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


def new_cache() -> PagedKV:
    cache = PagedKV(layers=2, kv_heads=3, head_dim=16, num_pages=4, page_size=2, scratch_slots=5)
    rng = np.random.default_rng(0)
    cache.keys[...] = rng.normal(size=cache.keys.shape)
    cache.values[...] = rng.normal(size=cache.values.shape)
    return cache


def test_slots_and_sizes() -> None:
    cache = new_cache()
    assert cache.num_slots == 13 and cache.scratch_slot(0) == 8 and cache.scratch_slot(4) == 12
    assert cache.nbytes == 2 * 4 * 2 * 3 * 13 * 16
    assert cache.keys.ctypes.data % 64 == 0
    with pytest.raises(IndexError):
        cache.scratch_slot(5)
    with pytest.raises(ValueError, match="page_size 0"):
        PagedKV(layers=1, kv_heads=1, head_dim=16, num_pages=1, page_size=0, scratch_slots=0)


def test_copy_slots_moves_keys_and_values_of_all_layers() -> None:
    cache = new_cache()
    keys, values = cache.keys.copy(), cache.values.copy()
    source, target = np.array([8, 12, 3], np.int32), np.array([0, 8, 7], np.int32)
    cache.copy_slots(source, target)
    keys[:, :, target], values[:, :, target] = keys[:, :, source], values[:, :, source]
    assert np.array_equal(cache.keys, keys) and np.array_equal(cache.values, values)


@pytest.mark.parametrize(("source", "target"), [([13], [0]), ([0], [-1])])
def test_copy_slots_refuses_unknown_slots(source: list[int], target: list[int]) -> None:
    cache = new_cache()
    before = cache.keys.copy()
    with pytest.raises(IndexError):
        cache.copy_slots(np.array([1, *source], np.int32), np.array([2, *target], np.int32))
    assert np.array_equal(cache.keys, before)


def test_copy_slots_needs_equal_lengths() -> None:
    with pytest.raises(ValueError, match="1 source slots but 2 target slots"):
        new_cache().copy_slots(np.zeros(1, np.int32), np.zeros(2, np.int32))
