"""The loops that lay out a pass, compiled: nothing runs on the device meanwhile where trees are verified."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.compiler import kernel

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

COMMITTED = -2
"""Parent of a row that is no tree node."""
SPAN = 7
"""Columns of `lay_rows`'s items."""


@kernel
def lay_rows(
    items: Int32,
    decodes: int,
    known: Int32,
    parents: Int32,
    page_table: Int32,
    page_size: int,
    first_scratch_slot: int,
    rows: Int32,
    spans: Int32,
    logit_rows: Int32,
    deciding: Int32,
    choices: Int32,
) -> None:
    """Rows of consecutive items: their committed tokens, then the nodes that hang below the last of them.

    `items` [items, SPAN]: line, first position, committed tokens, nodes, whether it decides; where the device settles
    its rows, its place in the step before, else -1; of nodes that only the device knows their tree's `tree_source`,
    else 0. Each has 1 committed token or more; the first `decodes` items have 1. `known`: ids of each item's tokens,
    then of its nodes if the host knows them. `parents` [nodes that the host knows]: index of a node's parent among its
    item's nodes, less than its own, or -1. `page_table` [lines, pages]. Nothing is checked.

    Writes `rows` [7, rows]: token ids, positions, write slots, lines, prefix lengths, parents and root rows of
    `PassPlan`; `spans` [items, 4]: those of `decodes` and `prefills`; `logit_rows`, `deciding` and `choices`. Nodes
    take scratch slots from the first one on; those that the host does not know stand as chains of token 0.
    """
    row = logit = decided = node = token = parent = choice = handed = 0
    for item in range(len(items)):
        line, position, count, nodes = items[item, 0], items[item, 1], items[item, 2], items[item, 3]
        source = items[item, 6]
        spans[item, 0], spans[item, 1], spans[item, 2] = row, count + nodes, line
        spans[item, 3] = position + 1 if item < decodes else position
        for _ in range(count):
            rows[0, row] = known[token]
            rows[1, row] = position
            rows[2, row] = page_table[line, position // page_size] * page_size + position % page_size
            rows[3, row] = line
            rows[4, row] = position + 1
            rows[5, row] = COMMITTED
            rows[6, row] = row
            position += 1
            row += 1
            token += 1
        root = row - 1
        for number in range(nodes):
            above = number - 1 if source < 0 else parents[parent]
            rows[0, row] = 0 if source < 0 else known[token]
            rows[1, row] = rows[1, root + 1 + above] + 1
            rows[2, row] = first_scratch_slot + node
            rows[3, row] = line
            rows[4, row] = position
            rows[5, row] = above
            rows[6, row] = root
            if source >= 0:
                token += 1
                parent += 1
            node += 1
            row += 1
        if not items[item, 4]:
            continue
        deciding[decided, 0], deciding[decided, 1] = logit, 1 + nodes
        deciding[decided, 2], deciding[decided, 3] = line, position
        for wanted in range(root, row):
            logit_rows[logit] = wanted
            logit += 1
        if items[item, 5] >= 0:
            choices[choice, 0], choices[choice, 1], choices[choice, 2] = decided, items[item, 5], position - 1
            choices[choice, 3], choices[choice, 4] = root, 1 + nodes
            choices[choice, 5], choices[choice, 6] = handed if source < 0 else 0, source
            choices[choice, 7] = 0
            handed += nodes
            choice += 1
        decided += 1


@kernel
def count_rows(items: Int32) -> tuple[int, int, int, int]:
    """Of items as `lay_rows` takes them: rows, rows with logits, items that decide, choices."""
    rows = logits = deciding = choices = 0
    for item in range(len(items)):
        rows += items[item, 2] + items[item, 3]
        if items[item, 4]:
            logits += 1 + items[item, 3]
            deciding += 1
            choices += items[item, 5] >= 0
    return rows, logits, deciding, choices


@kernel
def plan_items(items: Int64) -> Int64:
    """Where `lay_rows` lays each item's rows, int64 [items, 5].

    `items` [items, 5]: committed tokens, whether it has a tree, its root and nodes, most nodes that it accepts, whether
    it decides. Items of one token or with a tree come first, each in order; then the other tokens of each item.

    Returns the rows of its first token and of its last, the root; its tokens; those and all that it accepts at most;
    its place among those that decide, 0 where it does not.
    """
    planned = np.zeros((len(items), 5), np.int64)
    row = order = 0
    for item in range(len(items)):
        tokens, rooted = items[item, 0], items[item, 1] != 0
        planned[item, 2], planned[item, 3] = tokens, tokens + items[item, 3]
        if tokens == 1 or rooted:
            planned[item, 0] = planned[item, 1] = row
            row += items[item, 2]
            if items[item, 4]:
                planned[item, 4] = order
                order += 1
    for item in range(len(items)):
        tokens, rooted = items[item, 0], items[item, 1] != 0
        if tokens > 1:
            planned[item, 0] = row
            row += tokens - rooted
            if not rooted:
                planned[item, 1] = row - 1
                if items[item, 4]:
                    planned[item, 4] = order
                    order += 1
    return planned


@kernel
def committed_rows(planned: Int64, wanted: Int64) -> Int64:
    """Rows of committed tokens: (row, order, item, place) as in `ops.gpu.state_rows`, int64 [any, 4].

    `planned` as from `plan_items`. `wanted` [any, 4]: an item; how many of its rows at most; place of the first, places
    from one to the next. Of each the rows of its tokens and then of the nodes that it may accept. Nothing is checked.
    """
    count = 0
    for each in range(len(wanted)):
        count += min(planned[wanted[each, 0], 3], wanted[each, 1])
    rows = np.empty((count, 4), np.int64)
    row = 0
    for each in range(len(wanted)):
        item = wanted[each, 0]
        start, root, tokens = planned[item, 0], planned[item, 1], planned[item, 2]
        for number in range(min(planned[item, 3], wanted[each, 1])):
            is_token = number < tokens
            rows[row, 0] = start + number if number < tokens - 1 else root
            rows[row, 1] = -1 if is_token else number - tokens
            rows[row, 2] = 0 if is_token else planned[item, 4]
            rows[row, 3] = wanted[each, 2] + number * wanted[each, 3]
            row += 1
    return rows


@kernel
def in_order(decodes: Int32, prefills: Int32) -> bool:
    """Whether spans (first row, rows, ...) lie end to end from row 0 on, first those of `decodes`."""
    end = 0
    for span in range(len(decodes)):
        if decodes[span, 0] != end:
            return False
        end += decodes[span, 1]
    for span in range(len(prefills)):
        if prefills[span, 0] != end:
            return False
        end += prefills[span, 1]
    return True


@kernel
def pad(values: Int32, target: Int32, padding: int) -> None:
    """Copy [n] or [n, columns] values to the start of `target`, of more of them, and fill the rest of it."""
    source, out = values.reshape(-1), target.reshape(-1)
    out[: len(source)] = source
    out[len(source) :] = padding


@kernel
def pack_segments(
    decodes: Int32,
    segment_rows: int,
    splits: Int32,
    block: int,
    decode_rows: Int32,
    segments: Int32,
    item_offsets: Int32,
) -> None:
    """Cut spans (first row, rows, line, prefix length) into `segments` of at most `segment_rows` rows.

    `splits[n]`: splits of n full blocks of `block` positions. See `PlanArrays` for what is written. Raises ValueError
    for more rows than `decode_rows` has room for.
    """
    decode_rows[:] = -1
    segments[:] = 0
    item_offsets[:] = 0
    count = 0
    for span in range(len(decodes)):
        first, rows, line, prefix = decodes[span, 0], decodes[span, 1], decodes[span, 2], decodes[span, 3]
        if first + rows > len(decode_rows):
            raise ValueError("too many rows decode")
        for row in range(first, first + rows):
            decode_rows[row] = row
        while rows > 0:
            part = min(rows, segment_rows)
            segments[count, 0], segments[count, 1], segments[count, 2], segments[count, 3] = first, part, line, prefix
            item_offsets[count + 1] = item_offsets[count] + splits[max(prefix - 1, 0) // block]
            count += 1
            first += part
            rows -= part
    item_offsets[count + 1 :] = item_offsets[count]


@kernel
def pack_pass(
    token_ids: Int32,
    positions: Int32,
    write_slots: Int32,
    lines: Int32,
    prefix_lengths: Int32,
    parents: Int32,
    root_rows: Int32,
    logit_rows: Int32,
    deciding: Int32,
    updates: Int32,
    decodes: Int32,
    segment_rows: int,
    splits: Int32,
    block: int,
    places: Int32,
    words: Int32,
) -> None:
    """Write the arrays of a pass into `words`, padded: all of `PlanArrays` but the tiles, in one call.

    The first arguments are those of `PassPlan`, and (index, word) pairs `updates`; `decodes` are the spans for
    `pack_segments`. `places` [fields of PlanArrays, 2]: first word and number of words of each array, in order. Padding
    rows are their own roots. Raises ValueError where something is larger than its place.
    """
    pad(token_ids, _place(words, places, 0), 0)
    pad(positions, _place(words, places, 1), 0)
    pad(write_slots, _place(words, places, 2), -1)
    pad(lines, _place(words, places, 3), 0)
    pad(prefix_lengths, _place(words, places, 4), 0)
    pad(parents, _place(words, places, 5), COMMITTED)
    roots = _place(words, places, 6)
    pad(root_rows, roots, 0)
    for row in range(len(root_rows), len(roots)):
        roots[row] = row
    pad(logit_rows, _place(words, places, 7), -1)
    pad(deciding, _place(words, places, 8), 0)
    segments = _place(words, places, 10).reshape(-1, 4)
    offsets = _place(words, places, 11)
    pack_segments(decodes, segment_rows, splits, block, _place(words, places, 9), segments, offsets)
    pad(updates, _place(words, places, 13), -1)


@kernel
def _place(words: Int32, places: Int32, field: int) -> Int32:
    first = places[field, 0]
    return words[first : first + places[field, 1]]
