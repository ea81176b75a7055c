"""The loops that lay out a round of drafting, compiled: the device waits for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.models.gpu.batch.plan_kernels import pack_segments

Int32 = npt.NDArray[np.int32]

LINE, CACHED, POSITION, ROWS, MAX_NODES, MAX_DEPTH = range(6)
"""Columns of `items`: a session's line, rows of its text in its pages, the first row's position, and its rows of text;
then most drafted nodes and most levels of its tree."""

_COMMITTED = -2


@kernel
def lay_rows(
    items: Int32, page_table: Int32, page_size: int, positions: Int32, write_slots: Int32, lines: Int32
) -> None:
    """Positions, slots and lines of rows of text, item after item; padding writes no slot."""
    row = 0
    for item in range(len(items)):
        line, cached = items[item, LINE], items[item, CACHED]
        for index in range(items[item, ROWS]):
            place = cached + index
            positions[row] = items[item, POSITION] + index
            write_slots[row] = page_table[line, place // page_size] * page_size + place % page_size
            lines[row] = line
            row += 1
    positions[row:] = 0
    write_slots[row:] = -1
    lines[row:] = 0


@kernel
def lay_chains(items: Int32, prefix_lengths: Int32, parents: Int32, root_rows: Int32, last_rows: Int32) -> None:
    """Rows of text as a chain below the text that is cached, so that they share the reading of it."""
    row = 0
    for item in range(len(items)):
        first = row
        for index in range(items[item, ROWS]):
            prefix_lengths[row] = items[item, CACHED]
            parents[row] = index - 1
            root_rows[row] = first - 1
            row += 1
        last_rows[item] = row - 1
    last_rows[len(items) :] = -1
    for padding in range(row, len(parents)):
        prefix_lengths[padding] = 0
        parents[padding] = _COMMITTED
        root_rows[padding] = padding


@kernel
def lay_roots(items: Int32, shift: int, root_rows: Int32, lines: Int32, positions: Int32, limits: Int32) -> None:
    """Where trees begin: padding is row -1 and has no nodes. A position is that of the last token of the text."""
    for item in range(len(root_rows)):
        used = item < len(items)
        root_rows[item] = item if used else -1
        lines[item] = items[item, LINE] if used else 0
        limits[item, 0] = items[item, MAX_NODES] if used else 0
        limits[item, 1] = items[item, MAX_DEPTH] if used else 0
        positions[item] = items[item, POSITION] + items[item, ROWS] - 2 + shift if used else 0


@kernel
def lay_nodes(
    items: Int32, width: int, shift: int, positions: Int32, choices: Int32, lines: Int32, prefix_lengths: Int32
) -> None:
    """Rows of the nodes that are computed, level by level: `positions` and `choices` [levels - 1, sessions * width].

    `choices` are positions of the nodes' tokens, `positions` those of their rows, which may hold the state before.
    """
    for session in range(len(lines) // width):
        used = session < len(items)
        line = items[session, LINE] if used else 0
        length = items[session, CACHED] + items[session, ROWS] if used else 0
        last = items[session, POSITION] + items[session, ROWS] - 1 if used else 0
        for row in range(session * width, (session + 1) * width):
            lines[row] = line
            prefix_lengths[row] = length
            for level in range(len(positions)):
                positions[level, row] = last + 1 + level
                choices[level, row] = last + level + shift


@kernel
def pack_round(
    items: Int32,
    token_ids: Int32,
    page_table: Int32,
    page_size: int,
    shift: int,
    width: int,
    segment_rows: int,
    splits: Int32,
    block: int,
    places: Int32,
    words: Int32,
) -> None:
    """Write the arrays of a round into `words`, padded: all of `RoundArrays` but updates and tiles, in one call.

    `token_ids` of all items' rows. `segment_rows`, `splits`, `block`: of `pack_segments`. `places` [fields, 2]: first
    word and number of words of each array, in the order of the fields.
    """
    ids = _place(words, places, 1)
    ids[: len(token_ids)] = token_ids
    ids[len(token_ids) :] = 0
    positions, write_slots = _place(words, places, 2), _place(words, places, 3)
    lay_rows(items, page_table, page_size, positions, write_slots, _place(words, places, 4))
    prefix_lengths, parents = _place(words, places, 6), _place(words, places, 7)
    lay_chains(items, prefix_lengths, parents, _place(words, places, 8), _place(words, places, 12))
    spans = np.empty((len(items), 4), np.int32)
    row = 0
    for item in range(len(items)):
        spans[item, 0], spans[item, 1] = row, items[item, ROWS]
        spans[item, 2], spans[item, 3] = items[item, LINE], items[item, CACHED]
        row += items[item, ROWS]
    _segment(spans, segment_rows, splits, block, places, 9, words)
    limits = _place(words, places, 16).reshape(-1, 2)
    roots, lines = _place(words, places, 13), _place(words, places, 14)
    lay_roots(items, shift, roots, lines, _place(words, places, 15), limits)
    nodes = _place(words, places, 19)
    if places[17, 1] == 0:
        return
    node_positions = _place(words, places, 17).reshape(-1, len(nodes))
    choices = _place(words, places, 18).reshape(-1, len(nodes))
    lay_nodes(items, width, shift, node_positions, choices, nodes, _place(words, places, 20))
    for item in range(len(items)):
        spans[item, 0], spans[item, 1] = item * width, width
        spans[item, 3] = items[item, CACHED] + items[item, ROWS]
    _segment(spans, segment_rows, splits, block, places, 21, words)


@kernel
def _segment(
    spans: Int32, segment_rows: int, splits: Int32, block: int, places: Int32, first: int, words: Int32
) -> None:
    """Cut spans into segments; the rows, the segments and their offsets are fields from `first` on."""
    segments = _place(words, places, first + 1).reshape(-1, 4)
    rows, offsets = _place(words, places, first), _place(words, places, first + 2)
    pack_segments(spans, segment_rows, splits, block, rows, segments, offsets)


@kernel
def _place(words: Int32, places: Int32, field: int) -> Int32:
    first = places[field, 0]
    return words[first : first + places[field, 1]]
