from __future__ import annotations

import numpy as np
import pytest

from slipstream_kernels.models.gpu.batch.plan_kernels import in_order, lay_rows, pack_segments, pad


def int32(*values: object) -> np.ndarray:
    return np.array(values, np.int32)


def test_nodes_stand_below_their_parents() -> None:
    """A root with five nodes, one without, and a prompt of three tokens that decides nothing."""
    items = int32((0, 6, 1, 5, 1), (2, 1, 1, 0, 1), (1, 4, 3, 0, 0))
    pages = int32((7, 3), (5, 2), (9, 9))
    rows, spans = np.full((6, 10), 99, np.int32), np.full((3, 4), 99, np.int32)
    logit_rows, deciding = np.full(7, 99, np.int32), np.full((2, 4), 99, np.int32)
    lay_rows(items, 2, int32(-1, 0, 0, -1, 2), pages, 4, 50, rows, spans, logit_rows, deciding)
    positions, slots, lines, prefixes, parents, roots = rows.tolist()
    assert positions == [6, 7, 8, 8, 7, 9, 1, 4, 5, 6]
    assert slots == [14, 50, 51, 52, 53, 54, 37, 8, 9, 10]
    assert lines == [0] * 6 + [2] + [1] * 3
    assert prefixes == [7] * 6 + [2, 5, 6, 7]
    assert parents == [-2, -1, 0, 0, -1, 2, -2, -2, -2, -2]
    assert roots == [0] * 6 + [6, 7, 8, 9]
    assert spans.tolist() == [[0, 6, 0, 7], [6, 1, 2, 2], [7, 3, 1, 4]]
    assert logit_rows.tolist() == list(range(7))
    assert deciding.tolist() == [[0, 6, 0, 7], [6, 1, 2, 2]]


@pytest.mark.parametrize(("first", "ordered"), [((0, 3, 4), True), ((0, 4, 3), False), ((1, 3, 4), False)])
def test_order_is_that_of_the_rows(first: tuple[int, int, int], ordered: bool) -> None:
    spans = int32(*((row, count, 0, 0) for row, count in zip(first, (3, 1, 2), strict=True)))
    for decodes in range(4):
        assert in_order(spans[:decodes], spans[decodes:]) == ordered


def test_padding_fills_what_is_left() -> None:
    target = np.full((3, 2), 99, np.int32)
    pad(int32((1, 2)), target, -1)
    assert target.tolist() == [[1, 2], [-1, -1], [-1, -1]]
    with pytest.raises(ValueError, match="cannot assign slice"):
        pad(int32(*range(7)), target, 0)


def test_spans_are_cut_into_segments() -> None:
    splits = int32(0, 1, 1, 2)
    decode_rows, segments, offsets = (np.full(shape, 99, np.int32) for shape in (7, (8, 4), 9))
    pack_segments(int32((0, 5, 3, 200), (5, 1, 1, 63)), 2, splits, 64, decode_rows, segments, offsets)
    assert decode_rows.tolist() == [0, 1, 2, 3, 4, 5, -1]
    assert segments[:5].tolist() == [[0, 2, 3, 200], [2, 2, 3, 200], [4, 1, 3, 200], [5, 1, 1, 63], [0] * 4]
    assert not segments[5:].any()
    assert offsets.tolist() == [0, 2, 4, 6, 6, 6, 6, 6, 6]
    with pytest.raises(ValueError, match="too many rows decode"):
        pack_segments(int32((0, 8, 3, 200)), 2, splits, 64, decode_rows, segments, offsets)
