"""The drafter's end of a device queue: rounds begin once verify's pass has left what it decided, without the host.

    upload stream                      |-tables-|
    queue's stream   |------ wait ------|-copy-|                    |-publish-|
    round's stream                             |-- text --|-- tree --|

The wait is bounded by the device's clock: where no pass comes the round computes on zeros, and is void.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

import numpy as np
import torch

from draft_service.verify_link.hidden_state_ring import HiddenStateRing
from slipstream_kernels.device_queue import PARITIES, queue_sides
from slipstream_kernels.device_tree import DeviceTree, DeviceTrees
from slipstream_kernels.draft_protocol.follow import Follow
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound, EnqueueRequest
from slipstream_kernels.draft_protocol.records import DeviceQueueAddress
from slipstream_kernels.ipc.byte_ring import NONCE_BYTES
from slipstream_kernels.ipc.device_memory import DeviceBlock, DeviceMemory, DeviceMemoryError
from slipstream_kernels.ops.gpu import device_queue as ops
from slipstream_kernels.ops.gpu.draft_trees import TREE_WIDTH
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH

_log = logging.getLogger(__name__)

PASS_NS = 1_000_000_000
"""Longest wait of a round for the pass in front of it: longer than any pass that others wait for."""
_TAKES = (ops.await_word_reference, ops.take_outcomes_reference), (ops.await_word, ops.take_outcomes)
"""The twins, and the ops."""
_GENERATION = 0x7FFFFFFF
"""What of a generation a header has."""


class DevicePassQueue:
    """Implements `PassQueue`. `told` is for the source, on the same thread."""

    def __init__(self, block: DeviceBlock, rows: int, states: HiddenStateRing, nonce: bytes = b"") -> None:
        """Compiles all that is launched later, and waits for that. `states` is the ring that records name places of."""
        numbers = block.numbers()
        device = numbers.device
        self.nonce = nonce
        self._block = block
        self._states = states.numbers
        self.sides = queue_sides(numbers, rows)
        self._streams = (torch.cuda.Stream(device), torch.cuda.Stream(device)) if numbers.is_cuda else None
        self._host_tables = torch.zeros(PARITIES, rows, ops.TABLE, dtype=torch.int32, pin_memory=numbers.is_cuda)
        self._tables = torch.zeros(PARITIES, rows, ops.TABLE, dtype=torch.int32, device=device)
        self._results = torch.zeros(rows, RESULT_WIDTH, dtype=torch.int32, device=device)
        self._came = torch.zeros(rows, dtype=torch.int32, device=device)
        self._host_came = torch.zeros(PARITIES, rows, dtype=torch.int32, pin_memory=numbers.is_cuda)
        zeros = (torch.zeros(1, dtype=torch.int32, device=device) for _ in range(3))
        self._counter, self._scratch_word, self._there = zeros
        self._no_trees = torch.zeros(1, TREE_WIDTH, dtype=torch.int32, device=device)
        self._published: list[torch.cuda.Event | None] = [None] * PARITIES
        self._newest: Follow | None = None
        self._warm_up()

    @classmethod
    def open(cls, address: DeviceQueueAddress, memory: DeviceMemory, states: HiddenStateRing) -> Self:
        """Open the queue of another process. DeviceMemoryError if that cannot be."""
        block = memory.open(address.handle, address.size, address.gpu_uuid)
        try:
            return cls(block, address.rows, states, block.read_nonce(NONCE_BYTES))
        except ValueError as error:
            raise DeviceMemoryError(str(error)) from error

    def told(self, record: Follow) -> None:
        """A pass is under way; the one before it is decided, or soon will be."""
        self._newest = record if len(record.values) <= len(self._results) else None

    def newest(self) -> Follow | None:
        newest, self._newest = self._newest, None
        return newest

    def outcome(self, record: Follow) -> DevicePassResult:
        rows, parity = len(record.values), record.number % PARITIES
        results, came, host = self._results[:rows], self._came[:rows], self._host_came[parity][:rows]
        side = self.sides[parity]
        wait, op = _TAKES[results.is_cuda]
        with self._on_stream():
            wait(side.decided, record.number, PASS_NS, self._there)
            op(side.outcomes, side.decided, record.number, self._there, results, came)
            ready = self._event()
            host.copy_(came, non_blocking=True)
            copied = self._event()

        def all_came() -> bool:
            if copied is not None:
                copied.synchronize()
            return bool(host.all())

        return DevicePassResult(results, self._states, ready, all_came)

    def publish(self, record: Follow, enqueued: EnqueuedRound) -> None:
        parity = record.number % PARITIES
        groups = _by_round(record.values, enqueued)
        side, table = self.sides[parity], self._table(record, enqueued, [row for _, rows in groups for row in rows])
        op = ops.publish_trees if table.is_cuda else ops.publish_trees_reference
        first = 0
        with self._on_stream():
            for read in enqueued.read:
                read.wait()
            for trees, rows in groups:
                part = table[first : first + len(rows)]
                first += len(rows)
                word = side.drafted if first == len(table) else self._scratch_word
                op(trees.queue(), part, side.trees, self._counter, word, record.number)
            if not groups:
                op(self._no_trees, table, side.trees, self._counter, side.drafted, record.number)
            self._published[parity] = self._event()

    def close(self) -> None:
        """Unmap the memory, once nothing queued uses it any more."""
        del self.sides, self._states
        try:
            self._block.close()
        except DeviceMemoryError as error:
            _log.warning("verify's memory is still mapped: %s", error)

    def _table(self, record: Follow, enqueued: EnqueuedRound, rows: Sequence[int]) -> torch.Tensor:
        """What says where the tree of each of these rows goes, on its way to the device."""
        parity = record.number % PARITIES
        before = self._published[parity]
        if before is not None:
            before.synchronize()  # the pass but one before it: as a rule long over
        lines = [_line(record.number, record.values[row], row, enqueued.trees[row]) for row in rows]
        host, table = self._host_tables[parity][: len(lines)], self._tables[parity][: len(lines)]
        host.copy_(torch.from_numpy(np.array(lines, np.int32).reshape(-1, ops.TABLE)))
        if self._streams is None:
            table.copy_(host)
            return table
        uploads, stream = self._streams[1], self._streams[0]
        with torch.cuda.stream(uploads):
            table.copy_(host, non_blocking=True)
        stream.wait_stream(uploads)
        return table

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._streams is None else torch.cuda.stream(self._streams[0])

    def _event(self) -> torch.cuda.Event | None:
        if self._streams is None:
            return None
        event = torch.cuda.Event()
        event.record(self._streams[0])
        return event

    def _warm_up(self) -> None:
        """Run what follows will run, on memory of this process: a kernel that is not loaded would hold up a round."""
        if self._streams is None:
            return
        table, rows = self._tables[0][:1], torch.zeros_like(self.sides[0].trees[:1])
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))  # which clears the tables
        with self._on_stream():
            ops.await_word(self._scratch_word, 0, 0, self._there)
            ops.take_outcomes(self._results, self._scratch_word, 0, self._there, self._results[:1], self._came[:1])
            ops.publish_trees(self._no_trees, table, rows, self._counter, self._scratch_word, 0)
        self._streams[0].synchronize()


def _by_round(values: Sequence[EnqueueRequest], enqueued: EnqueuedRound) -> list[tuple[DeviceTrees, list[int]]]:
    """Rows of the values that have trees, by the trees that they are among."""
    groups: dict[int, tuple[DeviceTrees, list[int]]] = {}
    for row in range(len(values)):
        tree = enqueued.trees.get(row)
        if tree is not None:
            groups.setdefault(id(tree.trees), (tree.trees, []))[1].append(row)
    return list(groups.values())


def _line(number: int, value: EnqueueRequest, row: int, tree: DeviceTree) -> list[int]:
    """A line of the ops' table."""
    stamp, line = value.stamp, [0] * ops.TABLE
    line[ops.SOURCE], line[ops.PLACE] = tree.row, row
    head = number, stamp.slot, stamp.generation & _GENERATION, stamp.base_length, stamp.root_token
    line[ops.HEADER : ops.HEADER + ops.HEADED] = head
    return line
