"""A mirror that takes the changes, now and then, reads what the table holds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from verify_service.kv_cache.page_table import PageTable

LINES, PAGES = 4, 12


@st.composite
def writes(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    start = draw(st.integers(0, PAGES - 1))
    pages = draw(st.lists(st.integers(0, 999), max_size=PAGES - start))
    return draw(st.integers(0, LINES - 1)), start, pages


@given(rounds=st.lists(st.lists(writes(), max_size=6), max_size=6))
def test_a_mirror_follows(rounds: list[list[tuple[int, int, list[int]]]]) -> None:
    table = PageTable(LINES, PAGES)
    mirror = np.zeros((LINES, PAGES), dtype=np.int32)
    expected = mirror.copy()
    for written in rounds:
        for line, start, pages in written:
            table.write(line, start, pages)
            expected[line, start : start + len(pages)] = pages
        for line, start, pages in table.take_changes():
            mirror[line, start : start + len(pages)] = pages
        assert mirror.tolist() == table.entries.tolist() == expected.tolist()
        assert list(table.take_changes()) == []


def test_what_did_not_change_is_not_told() -> None:
    table = PageTable(LINES, PAGES)
    table.write(2, 3, [7, 8])
    table.write(2, 6, [9])
    table.write(1, 5, [])
    ((line, start, pages),) = table.take_changes()
    assert (line, start, pages.tolist()) == (2, 3, [7, 8, 0, 9])
