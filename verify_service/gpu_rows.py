"""Lays the scheduled tokens and drafted nodes out as the plan of a pass on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.models.gpu.pass_plan import PassPlan
from verify_service.page_table import PageTable
from verify_service.scheduler import ScheduledRows

IntArray = NDArray[np.int32]

_ONE = np.int32(1)
_COMMITTED = -2
"""Parent of a row that is no tree node."""
_UNKNOWN = -1
"""Token id of a row that takes what the step before decided."""


class GpuRows:
    """Plans passes. A plan's arrays are its own and hold for as long as somebody needs them."""

    def __init__(self, page_table: PageTable, page_size: int, first_scratch_slot: int) -> None:
        self._pages = page_table.entries
        self._page_size = np.int32(page_size)
        self._first_scratch_slot = first_scratch_slot

    def build(self, items: Sequence[ScheduledRows]) -> tuple[PassPlan, list[ScheduledRows]]:
        """The plan, and the items that decide a token in the order of the plan's.

        An item of one token is a decoding span, and so is a root with its tree; other tokens are prefill spans.
        """
        decodes = [item for item in items if item.count == 1 or item.tree is not None]
        prefills = [item for item in items if item.count > 1]
        lines = _array([item.state.line for item in decodes] + [item.state.line for item in prefills])
        firsts = _array([item.base - 1 for item in decodes] + [item.first for item in prefills])
        counts = _array([1] * len(decodes) + [_run(item) for item in prefills])
        nodes = _array([item.num_rows - 1 for item in decodes] + [0] * len(prefills))
        sizes = counts + nodes
        starts = _offsets(sizes)
        rows = np.arange(sizes.sum(), dtype=np.int32)
        positions = rows + np.repeat(firsts - starts, sizes)
        row_lines = np.repeat(lines, sizes)
        parents = np.full(len(rows), _COMMITTED, dtype=np.int32)
        root_rows = rows
        has_trees = bool(nodes.any())
        if has_trees:
            root_rows = _root_rows(rows, starts, nodes, sizes)
            _write_nodes(decodes, rows != root_rows, root_rows, positions, parents)
        decides = [item.decides for item in decodes] + [item.decides and item.tree is None for item in prefills]
        logit_rows, deciding = _logits(np.array(decides, dtype=np.bool_), starts, counts, nodes, lines, firsts)
        spans = np.stack([starts, sizes, lines, firsts], axis=1)
        plan = PassPlan(
            token_ids=_token_ids(decodes, prefills),
            positions=positions,
            write_slots=self._write_slots(row_lines, positions, parents, has_trees=has_trees),
            lines=row_lines,
            prefix_lengths=positions[root_rows] + _ONE,
            parents=parents,
            root_rows=root_rows,
            logit_rows=logit_rows,
            deciding=deciding,
            decodes=spans[: len(decodes)] + np.array([0, 0, 0, 1], dtype=np.int32),
            prefills=spans[len(decodes) :],
            has_trees=has_trees,
            keep_logits=any(item.decides and item.state.sampling.logprobs is not None for item in items),
        )
        return plan, [item for item, due in zip([*decodes, *prefills], decides, strict=True) if due]

    def _write_slots(self, lines: IntArray, positions: IntArray, parents: IntArray, *, has_trees: bool) -> IntArray:
        if not has_trees:
            page, offset = np.divmod(positions, self._page_size)
            return self._pages[lines, page] * self._page_size + offset
        drafted = parents != _COMMITTED
        slots = self._first_scratch_slot - _ONE + np.cumsum(drafted, dtype=np.int32)
        slots[~drafted] = self._write_slots(lines[~drafted], positions[~drafted], parents, has_trees=False)
        return slots


def _run(item: ScheduledRows) -> int:
    """Rows of an item's prefill span; a root with a tree is in a span of its own."""
    return item.count if item.tree is None else item.count - 1


def _token_ids(decodes: Sequence[ScheduledRows], prefills: Sequence[ScheduledRows]) -> IntArray:
    token_ids: list[int] = []
    for item in decodes:
        tokens, root = item.state.tokens, item.base - 1
        token_ids.append(tokens[root] if root < len(tokens) else _UNKNOWN)
        if item.tree is not None:
            token_ids.extend(item.tree.token_ids)
    for item in prefills:
        token_ids.extend(item.state.tokens[item.first : item.first + _run(item)])
    return _array(token_ids)


def _root_rows(rows: IntArray, starts: IntArray, nodes: IntArray, sizes: IntArray) -> IntArray:
    """Of each row the first of its span where that has a tree, else the row itself."""
    return np.where(np.repeat(nodes > 0, sizes), np.repeat(starts, sizes), rows)


def _write_nodes(
    decodes: Sequence[ScheduledRows],
    drafted: NDArray[np.bool_],
    root_rows: IntArray,
    positions: IntArray,
    parents: IntArray,
) -> None:
    trees = [item.tree for item in decodes if item.tree is not None]
    parents[drafted] = [parent for tree in trees for parent in tree.parents]
    positions[drafted] = positions[root_rows[drafted]] + _array([depth for tree in trees for depth in tree.depths])


def _logits(
    decides: NDArray[np.bool_],
    starts: IntArray,
    counts: IntArray,
    nodes: IntArray,
    lines: IntArray,
    firsts: IntArray,
) -> tuple[IntArray, IntArray]:
    """Of the spans that decide: rows whose logits are wanted, and each span's share of them."""
    roots, rows = (starts + counts - _ONE)[decides], (nodes + _ONE)[decides]
    at = _offsets(rows)
    within = np.arange(rows.sum(), dtype=np.int32) - np.repeat(at, rows)
    deciding = np.stack([at, rows, lines[decides], (firsts + counts)[decides]], axis=1)
    return np.repeat(roots, rows) + within, deciding


def _array(values: Sequence[int]) -> IntArray:
    return np.array(values, dtype=np.int32)


def _offsets(sizes: IntArray) -> IntArray:
    """Where each of consecutive runs begins."""
    return np.cumsum(sizes, dtype=np.int32) - sizes
