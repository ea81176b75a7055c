"""Passes hold all tokens in order, and their places are never shared."""

from __future__ import annotations

import numpy as np
import pytest

from training.features.packing import Places, num_pages, packed

LENGTHS = (5, 1, 40, 1, 1, 17, 16, 3, 33, 2)


def sequences():
    start = 0
    for number, length in enumerate(LENGTHS):
        yield number, np.arange(start, start + length, dtype=np.int32)
        start += length


@pytest.mark.parametrize("rows", [1, 3, 16, 200])
@pytest.mark.parametrize("most", [1, 2, 9])
def test_passes_are_full_and_in_order(rows: int, most: int) -> None:
    passes = list(packed(sequences(), rows=rows, most=most))
    pieces = [piece for taken in passes for piece in taken]
    assert np.array_equal(np.concatenate([piece.token_ids for piece in pieces]), np.arange(sum(LENGTHS)))
    assert [piece.sequence for piece in pieces if piece.last] == list(range(len(LENGTHS)))
    assert [piece.sequence for piece in pieces if piece.start == 0] == list(range(len(LENGTHS)))
    for taken in passes[:-1]:
        assert sum(map(len, taken)) == rows or len(taken) == most
    assert all(sum(map(len, taken)) <= rows and len(taken) <= most for taken in passes)
    assert all(piece.last for taken in passes for piece in taken[:-1])


@pytest.mark.parametrize("rows", [1, 3, 16, 200])
@pytest.mark.parametrize("most", [1, 2, 9])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_held_places_are_held_by_one(rows: int, most: int, page_size: int) -> None:
    places = Places(rows=rows, most=most, longest=max(LENGTHS), page_size=page_size)
    limit = num_pages(rows=rows, most=most, longest=max(LENGTHS), page_size=page_size)
    held: dict[int, tuple[int, int]] = {}
    for taken in packed(sequences(), rows=rows, most=most):
        for piece in taken:
            line, filled = places.take(piece)
            assert held.get(piece.sequence, (line, 0)) == (line, filled.start)
            held[piece.sequence] = (line, filled.stop)
            assert filled.stop == -(-(piece.start + len(piece)) // page_size)
        pages = [page for line, count in held.values() for page in places.table[line, :count].tolist()]
        assert len(set(pages)) == len(pages)
        assert set(pages) <= set(range(limit))
        assert len({line for line, _ in held.values()}) == len(held)
        places.release(taken)
        held = {piece.sequence: held[piece.sequence] for piece in taken if not piece.last}
