"""Rows beside pages: found by position, gone with the page, never of another layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream_kernels.models.capture_layers import Bits
from verify_service.hidden_states.rows import HiddenStateRows, PendingRows
from verify_service.hidden_states.store import HiddenStateStore

LAYOUT = (1, 3)
HIDDEN = 4
WIDTH = HIDDEN * len(LAYOUT)
ROW_BYTES = 2 * WIDTH


def store_of(num_pages: int = 8, page_size: int = 4, pages_kept: int = 8) -> HiddenStateStore:
    limit = pages_kept * page_size * ROW_BYTES
    store = HiddenStateStore(num_pages=num_pages, page_size=page_size, hidden_size=HIDDEN, limit=limit)
    store.lay_out(LAYOUT)
    return store


def states(first: int, end: int, seed: int = 0) -> HiddenStateRows:
    rows = np.random.default_rng(seed).integers(0, 1 << 16, (64, WIDTH)).astype(np.uint16)
    return HiddenStateRows(LAYOUT, first, rows[first:end])


def same(found: HiddenStateRows | None, expected: HiddenStateRows) -> bool:
    return found is not None and found.first == expected.first and np.array_equal(found.rows, expected.rows)


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_what_is_written_in_parts_is_read_as_a_whole(page_size: int) -> None:
    store = store_of(num_pages=32, page_size=page_size, pages_kept=32)
    pages = np.random.default_rng(1).permutation(32).tolist()
    for first, end in ((0, 7), (7, 8), (8, 19)):
        store.write([(pages, states(first, end))])
    assert same(store.read(pages, 0, 19), states(0, 19))
    assert same(store.read(pages, 5, 18), states(5, 18))
    assert store.read(pages, 5, 20) is None
    assert store.read(pages, 19, 19) is None
    assert store.reach(pages, 19) == store.reach(pages, 9) == 0
    assert store.reach(pages, 20) == 20


def test_what_lies_before_a_hole_is_left_out() -> None:
    store = store_of()
    pages = [5, 2, 7]
    store.write([(pages, states(0, 2))])
    store.write([(pages, states(3, 9))])
    assert same(store.read(pages, 0, 9), states(3, 9))
    assert (store.reach(pages, 9), store.reach(pages, 3), store.reach(pages, 2)) == (3, 3, 0)
    store.forget(2)
    assert same(store.read(pages, 0, 9), states(8, 9))
    assert same(store.read(pages, 0, 4), states(3, 4))
    assert store.pages == 2


def test_a_page_with_a_new_owner_holds_nothing_of_the_old_one() -> None:
    store = store_of()
    store.write([([3], states(0, 4))])
    store.forget(3)
    store.write([([3], states(1, 2, seed=5))])
    assert same(store.read([3], 0, 2), states(1, 2, seed=5))


def test_within_its_limit_the_pages_written_last_are_kept() -> None:
    store = store_of(pages_kept=2)
    assert store.capacity == 2
    assert store.nbytes == 2 * 4 * ROW_BYTES
    store.write([([0], states(0, 4))])
    store.write([([1], states(0, 4))])
    store.write([([0], states(3, 4))])
    store.write([([2], states(0, 4))])
    assert store.read([1], 0, 4) is None
    assert same(store.read([0], 0, 4), states(0, 4))
    assert (store.reach([1], 4), store.reach([0], 4), store.reach([0, 2], 8)) == (4, 0, 0)
    store.write([([3], states(1, 4))])
    assert (store.reach([2], 4), store.reach([3], 4), store.reach([0], 4)) == (0, 1, 4)


@pytest.mark.parametrize("pages_kept", [8, 2])
def test_rows_of_many_requests_are_written_at_once(pages_kept: int) -> None:
    step = np.random.default_rng(3).integers(0, 1 << 16, (12, WIDTH)).astype(np.uint16)

    def late(first: int, places: range | list[int]) -> HiddenStateRows:
        return HiddenStateRows(LAYOUT, first, PendingRows(lambda: step, places, WIDTH))

    store = store_of(pages_kept=pages_kept)
    own = states(2, 7)
    store.write([([0], late(0, range(4, 7))), ([4, 5], own), ([1], late(3, [11])), ([2], late(1, [0, 9]))])
    assert same(store.read([1], 3, 4), HiddenStateRows(LAYOUT, 3, step[11:]))
    assert same(store.read([2], 1, 3), HiddenStateRows(LAYOUT, 1, step[[0, 9]]))
    if pages_kept == 2:
        assert store.read([4, 5], 2, 7) is None is store.read([0], 0, 3)
    else:
        assert same(store.read([4, 5], 2, 7), own)
        assert same(store.read([0], 0, 3), HiddenStateRows(LAYOUT, 0, step[4:7]))


@given(
    kept=st.sampled_from([1, 2, 3, 24]),
    first=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    steps=st.lists(st.sets(st.integers(0, 3)), max_size=12),
)
def test_single_rows_of_requests_that_decode_are_found_where_pages_suffice_and_never_anothers(
    kept: int, first: list[int], steps: list[set[int]]
) -> None:
    """Each step writes a row of some requests; a request's pages are its own."""
    store, width = store_of(num_pages=24, pages_kept=kept), 6
    pages = [list(range(width * request, width * (request + 1))) for request in range(len(first))]
    rows: list[dict[int, Bits]] = [{} for _ in first]
    ends = list(first)
    for number, step in enumerate(steps):
        source = np.full((5, WIDTH), 1000 * number, np.uint16) + np.arange(5, dtype=np.uint16)[:, None]
        written = [(request, 4 - request) for request in sorted(step) if request < len(first)]
        store.write_single(source, [(pages[request], ends[request], row) for request, row in written])
        for request, row in written:
            rows[request][ends[request]] = source[row]
            ends[request] += 1
    for request, end in enumerate(ends):
        found = store.read(pages[request], 0, end)
        expected = range(first[request], end)
        if kept == 24:
            assert store.reach(pages[request], end) == first[request]
            assert (found is None) == (not expected)
        if found is not None:
            assert first[request] <= found.first and found.end == end
            assert all(np.array_equal(rows[request][found.first + at], row) for at, row in enumerate(found.rows))
    assert store.pages <= kept


def test_nothing_counts_as_written_where_states_are_gone() -> None:
    def gone() -> Bits:
        raise LookupError("the states of a step are gone")

    store = store_of()
    lost = HiddenStateRows(LAYOUT, 2, PendingRows(gone, [0], WIDTH))
    with pytest.raises(LookupError):
        store.write([([0], states(0, 2)), ([1], lost)])
    assert (store.reach([0], 2), store.reach([1], 3), store.pages) == (2, 3, 0)


def test_another_layout_begins_empty_and_none_takes_no_memory() -> None:
    store = store_of()
    store.write([([0], states(0, 4))])
    store.lay_out((2,))
    assert store.read([0], 0, 4) is None
    store.lay_out(())
    assert store.nbytes == store.capacity == store.pages == 0
    nothing = HiddenStateStore(num_pages=8, page_size=4, hidden_size=HIDDEN, limit=0)
    nothing.lay_out(LAYOUT)
    nothing.write([([0], states(0, 4))])
    assert nothing.read([0], 0, 4) is None


def test_boundaries_are_picked_in_any_order() -> None:
    rows = states(2, 6)
    assert rows.has([3]) and rows.has([3, 1]) and not rows.has([2])
    assert np.array_equal(rows.select([3, 1]), np.concatenate([rows.rows[:, HIDDEN:], rows.rows[:, :HIDDEN]], axis=1))
    assert rows.select([3]).flags.c_contiguous
    assert same(rows.slice(3, 5), states(3, 5))
