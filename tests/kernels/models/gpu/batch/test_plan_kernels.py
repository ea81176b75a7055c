from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from slipstream_kernels.models.gpu.batch.plan_kernels import in_order, lay_rows, pack_segments, pad


def int32(*values: object) -> np.ndarray:
    return np.array(values, np.int32)


@dataclass(frozen=True)
class Laid:
    rows: list[list[int]]
    spans: list[list[int]]
    logit_rows: list[int]
    deciding: list[list[int]]
    choices: list[list[int]]


def laid(items: np.ndarray, decodes: int, known: np.ndarray, parents: np.ndarray) -> Laid:
    """What `lay_rows` says of items on three lines of two pages each; what it leaves alone is 99."""
    pages = int32((7, 3), (5, 2), (9, 9))
    total, logits = int(items[:, 2:4].sum()), int((1 + items[:, 3]) @ items[:, 4])
    shapes = (7, total), (len(items), 4), (logits,), (int(items[:, 4].sum()), 4), (int((items[:, 5] >= 0).sum()), 8)
    rows, spans, logit_rows, deciding, choices = (np.full(shape, 99, np.int32) for shape in shapes)
    lay_rows(items, decodes, known, parents, pages, 4, 50, rows, spans, logit_rows, deciding, choices)
    return Laid(rows.tolist(), spans.tolist(), logit_rows.tolist(), deciding.tolist(), choices.tolist())


def test_nodes_stand_below_their_parents() -> None:
    """A root with five nodes, one without, and a prompt of three tokens that decides nothing."""
    items = int32((0, 6, 1, 5, 1, -1, 0), (2, 1, 1, 0, 1, -1, 0), (1, 4, 3, 0, 0, -1, 0))
    found = laid(items, 2, np.arange(10, 20, dtype=np.int32), int32(-1, 0, 0, -1, 2))
    ids, positions, slots, lines, prefixes, parents, roots = found.rows
    assert ids == list(range(10, 20))
    assert positions == [6, 7, 8, 8, 7, 9, 1, 4, 5, 6]
    assert slots == [14, 50, 51, 52, 53, 54, 37, 8, 9, 10]
    assert lines == [0] * 6 + [2] + [1] * 3
    assert prefixes == [7] * 6 + [2, 5, 6, 7]
    assert parents == [-2, -1, 0, 0, -1, 2, -2, -2, -2, -2]
    assert roots == [0] * 6 + [6, 7, 8, 9]
    assert found.spans == [[0, 6, 0, 7], [6, 1, 2, 2], [7, 3, 1, 4]]
    assert found.logit_rows == list(range(7))
    assert found.deciding == [[0, 6, 0, 7], [6, 1, 2, 2]]
    assert found.choices == []


def test_the_device_settles_rows_of_trees_that_it_has_alone_and_of_roots_without() -> None:
    """Three nodes of its tree 4; two that the host knows; a root that the step before brings; two of its tree 1."""
    items = int32(
        (1, 5, 1, 3, 1, 2, -5), (0, 6, 1, 2, 1, -1, 0), (2, 3, 1, 0, 1, 0, 0), (0, 1, 1, 2, 1, 3, -2)
    )  # fmt: skip
    found = laid(items, 4, int32(10, 20, 21, 22, 30, 40), int32(-1, -1))
    ids, positions, slots, _, _, parents, roots = found.rows
    assert ids == [10, 0, 0, 0, 20, 21, 22, 30, 40, 0, 0]
    assert parents == [-2, -1, 0, 1, -2, -1, -1, -2, -2, -1, 0]
    assert positions == [5, 6, 7, 8, 6, 7, 7, 3, 1, 2, 3]
    assert slots == [9, 50, 51, 52, 14, 53, 54, 39, 29, 55, 56]
    assert roots == [0] * 4 + [4] * 3 + [7] + [8] * 3
    assert found.choices == [[0, 2, 5, 0, 4, 0, -5, 0], [2, 0, 3, 7, 1, 0, 0, 0], [3, 3, 1, 8, 3, 3, -2, 0]]


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
