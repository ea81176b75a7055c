"""Lays the scheduled tokens and drafted nodes out as rows of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.engine_config import EngineConfig
from verify_service.core.scheduled_request import ScheduledRequest

IntArray = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class CpuBatch:
    """A forward pass and where its rows came from.

    `deciding` are the items whose next token is decided; their logit rows follow one another, root first, then the
    nodes. `lines` and `positions` int32 [logit rows]: the request's line, the position of the token decided.
    `node_slots[i]`: first scratch slot of the i-th deciding item's tree; its nodes' slots follow.
    """

    batch: RowBatch
    deciding: list[ScheduledRequest]
    lines: IntArray
    positions: IntArray
    node_slots: list[int]


class CpuBatchBuilder:
    """Writes rows into buffers that live as long as the engine: a step's arrays hold until the next `build`."""

    def __init__(self, config: EngineConfig, page_table: IntArray, first_scratch_slot: int) -> None:
        self._page_size = config.page_size
        self._page_table = page_table
        self._first_scratch_slot = first_scratch_slot
        rows = config.prefill_chunk + config.max_running * config.max_nodes
        self._token_ids = np.zeros(rows, dtype=np.int32)
        self._positions = np.zeros(rows, dtype=np.int32)
        self._write_slots = np.zeros(rows, dtype=np.int32)
        self._page_lines = np.zeros(rows, dtype=np.int32)
        self._prefix_lengths = np.zeros(rows, dtype=np.int32)
        self._num_ancestors = np.zeros(rows, dtype=np.int32)
        self._adapters = np.zeros(rows, dtype=np.int32)
        self._ancestors = np.zeros(rows * max(1, config.max_nodes - 1), dtype=np.int32)
        self._count = np.arange(rows + 1, dtype=np.int32)

    def build(self, items: Sequence[ScheduledRequest]) -> CpuBatch:
        """Rows of `items` in order; each item's nodes follow its committed tokens."""
        deciding: list[ScheduledRequest] = []
        node_slots: list[int] = []
        spans: list[tuple[int, int]] = []
        depths = [() if item.tree is None else item.tree.depths for item in items]
        width = max((max(levels) for levels in depths if levels), default=1)
        row, scratch = 0, self._first_scratch_slot
        for item, levels in zip(items, depths, strict=True):
            root = row + item.count - 1
            self._write_committed(item, row)
            row = root + 1
            if not item.decides:
                continue
            deciding.append(item)
            node_slots.append(scratch)
            if item.tree is not None:
                self._write_nodes(item, item.tree, levels, row, scratch, width)
                row += len(item.tree)
                scratch += len(item.tree)
            spans.append((root, row))
        return self._cut(row, width, deciding, node_slots, spans, self._adapter_rows(items))

    def _adapter_rows(self, items: Sequence[ScheduledRequest]) -> IntArray:
        """The slot of each row's adapter; nothing where no row has one."""
        slots = [item.state.parameters.adapter_slot for item in items]
        if all(slot < 0 for slot in slots):
            return self._adapters[:0]
        row = 0
        for item, slot in zip(items, slots, strict=True):
            end = row + item.count - 1 + item.num_rows
            self._adapters[row:end] = slot
            row = end
        return self._adapters[:row]

    def _write_committed(self, item: ScheduledRequest, row: int) -> None:
        state, size = item.state, self._page_size
        first = item.first
        if item.count == 1:
            self._token_ids[row] = state.tokens[first]
            self._positions[row] = first
            self._write_slots[row] = state.kv.pages[first // size] * size + first % size
            self._page_lines[row] = state.kv.req_index
            self._prefix_lengths[row] = first + 1
            self._num_ancestors[row] = 0
            return
        end = row + item.count
        positions = self._positions[row:end]
        np.add(self._count[: item.count], first, out=positions)
        self._token_ids[row:end] = state.tokens[first : first + item.count]
        self._write_slots[row:end] = self._page_table[state.kv.req_index, positions // size] * size + positions % size
        self._page_lines[row:end] = state.kv.req_index
        np.add(positions, 1, out=self._prefix_lengths[row:end])
        self._num_ancestors[row:end] = 0

    def _write_nodes(
        self, item: ScheduledRequest, tree: TokenTree, depths: Sequence[int], row: int, scratch: int, width: int
    ) -> None:
        base = item.base
        end = row + len(tree)
        self._token_ids[row:end] = tree.token_ids
        self._num_ancestors[row:end] = depths
        np.add(self._num_ancestors[row:end], base - 1, out=self._positions[row:end])
        np.add(self._count[: len(tree)], scratch, out=self._write_slots[row:end])
        self._page_lines[row:end] = item.state.kv.req_index
        self._prefix_lengths[row:end] = base
        ancestors = self._ancestors[row * width : end * width].reshape(len(tree), width)
        for node, (parent, depth) in enumerate(zip(tree.parents, depths, strict=True)):
            if depth > 1:
                ancestors[node, : depth - 1] = ancestors[parent, : depth - 1]
            ancestors[node, depth - 1] = scratch + node

    def _cut(
        self,
        rows: int,
        width: int,
        deciding: list[ScheduledRequest],
        node_slots: list[int],
        spans: list[tuple[int, int]],
        adapters: IntArray,
    ) -> CpuBatch:
        if len(spans) == 1:
            logit_rows = self._count[spans[0][0] : spans[0][1]]
        else:
            runs = [self._count[first:end] for first, end in spans]
            logit_rows = np.concatenate(runs) if runs else self._count[:0]
        batch = RowBatch(
            token_ids=self._token_ids[:rows],
            positions=self._positions[:rows],
            write_slots=self._write_slots[:rows],
            page_lines=self._page_lines[:rows],
            prefix_lengths=self._prefix_lengths[:rows],
            ancestor_slots=self._ancestors[: rows * width].reshape(rows, width),
            num_ancestors=self._num_ancestors[:rows],
            page_table=self._page_table,
            logit_rows=logit_rows,
            adapters=adapters,
        )
        return CpuBatch(batch, deciding, self._page_lines[logit_rows], self._positions[logit_rows] + 1, node_slots)
