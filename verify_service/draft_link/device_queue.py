"""The device queue of one attachment: passes that are told to its drafter, and the trees that come behind them.

    verify's stream   |---- pass n ----|---- wait ----|-check-|---- pass n + 1 ----|
    its queue         |                |-publish-|                                 |-publish-|
    drafter's stream                   |-wait-|-- draft --|-publish-|
    verify's host         launch n + 1    decide n            read the trees, have n + 1 followed, launch n + 2

No wait is longer than the deadline that a step has for trees, on the device's clock. Trees are copied and checked there
by the rules of the host, before a pass sees any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slipstream_kernels.device_queue import PARITIES, QueueSide, next_number, queue_sides
from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.follow import Follow
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound, EnqueueRequest
from slipstream_kernels.draft_protocol.records import Stamp
from slipstream_kernels.models.gpu.draft.round.tree_words import trees_of
from slipstream_kernels.ops.gpu import device_queue as ops
from slipstream_kernels.ops.gpu.draft_trees import TREE_WIDTH
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.token_tree import TokenTree
from verify_service.draft_link.circuit_breaker import FIRST_BACKOFF, LAST_BACKOFF
from verify_service.hidden_states.device_ring_pool import QueueMemory

_TAKES = (ops.await_word_reference, ops.take_trees_reference), (ops.await_word, ops.take_trees)
"""The twins, and the ops."""
_MISSES = 2
"""Deadlines in vain, in a row, from which on a drafter is left alone for a while."""
_GENERATION = 0x7FFFFFFF
"""What of a generation a header has."""


class DeviceQueue:
    """Publishes passes and takes the trees behind them. The link's lock guards `follow` and what is to be counted."""

    def __init__(self, memory: QueueMemory, vocab_size: int) -> None:
        """Compiles all that is launched later, and waits for that."""
        numbers, rows = memory.block.numbers(), memory.rows
        device = numbers.device
        self.memory = memory
        self._vocab_size = vocab_size
        self._sides = queue_sides(numbers, rows)
        self._stream = torch.cuda.Stream(device) if numbers.is_cuda else None
        pinned, shape = numbers.is_cuda, (PARITIES, rows, ops.TABLE)
        self._host_tables = torch.zeros(shape, dtype=torch.int32, pin_memory=pinned)
        self._tables = torch.zeros(shape, dtype=torch.int32, device=device)
        self._takes = [torch.cuda.Event() for _ in range(PARITIES if numbers.is_cuda else 0)]
        self._counter, self._there = (torch.zeros(1, dtype=torch.int32, device=device) for _ in range(2))
        self.trees = torch.zeros(rows, TREE_WIDTH, dtype=torch.int32, device=device)
        self.host_trees = torch.zeros(PARITIES, rows, TREE_WIDTH, dtype=torch.int32, pin_memory=pinned)
        self._number = 0
        self._backoff = self._not_before = 0.0
        self._missed = 0
        """Passes in a row whose word did not come in time."""
        self._verified: QueuedRound | None = None
        self._taken: QueuedRound | None = None
        """The round whose trees are in `trees`."""
        self._warm_up()

    def follow(
        self,
        values: Sequence[EnqueueRequest],
        outcome: DevicePassResult,
        seconds: float,
        tell: Callable[[Follow], bool],
    ) -> EnqueuedRound:
        """Publish what a pass under way decides for these requests, once it does, and promise trees behind it.

        A step waits for them up to `seconds`. `tell` sends the drafter the record of it; nothing is done where it
        cannot.
        """
        values = values[: self.memory.rows]
        number = next_number(self._number)
        told = [
            EnqueueRequest(stamp, row, rows, place, max_nodes, max_depth)
            for row, (stamp, _, rows, place, max_nodes, max_depth) in enumerate(values)
        ]
        if not tell(Follow(number, told)):
            return EnqueuedRound()
        self._number = number
        parity = number % PARITIES
        host, table, side = self._host_tables[parity], self._tables[parity][: len(values)], self._sides[parity]
        _fill_table(number, values, host.numpy())
        with self.own_stream():
            table.copy_(host[: len(values)], non_blocking=True)
            if self._stream is not None and outcome.ready is not None:
                self._stream.wait_event(outcome.ready)
            op = ops.publish_outcomes if table.is_cuda else ops.publish_outcomes_reference
            op(outcome.results, table, side.outcomes, self._counter, side.decided, number)
            read = self.mark()
        queued = QueuedRound(self, number, values, table, seconds)
        trees = {
            value.row: DeviceTree(queued, row, value.max_nodes - 1, min(value.max_depth, value.max_nodes - 1))
            for row, value in enumerate(values)
        }
        return EnqueuedRound(() if read is None else (read,), trees)

    def allows(self, now: float) -> bool:
        """Whether the drafter may be relied on: after two deadlines in vain only once a back-off has ended.

        One alone may be new requests, whose texts a drafter takes in first. now: time.monotonic(), in seconds.
        """
        return now >= self._not_before

    def on_word(self, now: float, *, in_time: bool) -> None:
        """The drafter has written a pass's word in time, or not."""
        self._missed = 0 if in_time else self._missed + 1
        self._backoff = 0.0 if self._missed < _MISSES else min(max(2 * self._backoff, FIRST_BACKOFF), LAST_BACKOFF)
        self._not_before = now + self._backoff

    def note_verified(self, queued: QueuedRound) -> None:
        """A step is launched with the trees of this round, which are taken."""
        self._verified = self._taken = queued

    def has_handed(self, stamp: Stamp) -> bool:
        """Whether the step under way, just launched, goes on from this state with a tree of the last round."""
        queued = self._verified
        row = None if queued is None else queued.row_of(stamp)
        return queued is not None and row is not None and queued.taken(row)

    def has_row(self, stamp: Stamp) -> bool:
        """Whether the round that the step under way was launched with has a row for this state, with a tree or not."""
        return self._verified is not None and self._verified.row_of(stamp) is not None

    def verified(self) -> QueuedRound | None:
        """The round whose trees the step under way verifies, once."""
        queued, self._verified = self._verified, None
        return queued

    def take(self, number: int, table: torch.Tensor, seconds: float) -> torch.cuda.Event | None:
        """Queue on the current stream the wait for trees, and their check, into `trees`; the event comes behind that.

        Trees taken before them, whose place they take, have left for the host by then.
        """
        if self._taken is not None and (left := self._taken.copy_to_host()) is not None:
            torch.cuda.current_stream(self.trees.device).wait_event(left)
        side: QueueSide = self._sides[number % PARITIES]
        limit = max(0, min(round(seconds * 1e9), 2**31 - 1))
        wait, op = _TAKES[table.is_cuda]
        wait(side.drafted, number, limit, self._there)
        op(side.trees, self._there, table, self._vocab_size, self.trees[: len(table)])
        if self._stream is None:
            return None
        event = self._takes[number % PARITIES]
        event.record(torch.cuda.current_stream(self._stream.device))
        self.memory.used = event
        return event

    def copy_to_host(self, number: int, rows: int, taken: torch.cuda.Event | None) -> torch.cuda.Event | None:
        """Queue the copy of `trees` to the host, behind that event; the one returned comes once it is made."""
        host = self.host_trees[number % PARITIES][:rows]
        if self._stream is not None and taken is not None:
            self._stream.wait_event(taken)
        with self.own_stream():
            host.copy_(self.trees[:rows], non_blocking=True)
            return self.mark()

    def own_stream(self) -> AbstractContextManager[Any]:
        """Queue what follows beside the model's passes."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event | None:
        """An event behind what was queued so far on its own stream; the memory is in use until then."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()
        event.record(self._stream)
        self.memory.used = event
        return event

    def close(self) -> None:
        """Wait for no more trees."""
        self.memory.closed = True

    def _warm_up(self) -> None:
        """Run what follows will run, on rows that are nobody's yet: the number 0 is no pass's."""
        results = torch.zeros(1, RESULT_WIDTH, dtype=torch.int32, device=self.trees.device)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))  # which clears the tables
        with self.own_stream():
            side, table = self._sides[0], self._tables[0][:1]
            if table.is_cuda:
                ops.publish_outcomes(results, table, side.outcomes, self._counter, side.decided, 0)
            self.take(0, table, 0.0)
            self.mark()
        if self._stream is not None:
            self._stream.synchronize()


class QueuedRound:
    """The trees behind one pass, a `DeviceTrees`.

    `values` are the requests, in the order of the rows; a step waits up to `seconds` for them.
    """

    __slots__ = (
        "_copied", "_copying", "_queue", "_rows", "_states", "_table", "_taken", "_taken_event", "_trees",
        "number", "seconds", "values",
    )  # fmt: skip

    def __init__(
        self, queue: DeviceQueue, number: int, values: Sequence[EnqueueRequest], table: torch.Tensor, seconds: float
    ) -> None:
        self.number = number
        self.values = values
        self.seconds = seconds
        self._queue = queue
        self._table = table
        self._states: list[int] = []
        self._rows = {(value.stamp.slot, value.stamp.generation): row for row, value in enumerate(values)}
        self._taken = self._copying = False
        self._taken_event: torch.cuda.Event | None = None
        self._copied: torch.cuda.Event | None = None
        self._trees: list[TokenTree] | None = None

    def queue(self) -> torch.Tensor:
        """See `DeviceTrees`: behind a wait that ends at the deadline, whoever writes what.

        A launch waits for all that is done here, and so their way to the host is left to `read`.
        """
        if not self._taken:
            self._take()
        elif self._taken_event is not None:
            torch.cuda.current_stream(self._queue.trees.device).wait_event(self._taken_event)
        return self._queue.trees

    def read(self, row: int) -> TokenTree:
        """See `DeviceTrees`: what was taken, and was sound. Empty where nothing was."""
        if not self._taken:
            with self._queue.own_stream():
                self._take()
        if self._trees is None:
            self.copy_to_host()
            if self._copied is not None:
                self._copied.synchronize()
            words = self._queue.host_trees[self.number % PARITIES][: len(self.values)].numpy()
            self._states = words[:, ops.STATE].tolist()
            self._trees = trees_of(words)
        return self._trees[row]

    def copy_to_host(self) -> torch.cuda.Event | None:
        """Have what was taken travel to the host, once; the event comes when it is there. None: it does so already."""
        if self._copying:
            return None
        self._copying = True
        self._copied = self._queue.copy_to_host(self.number, len(self.values), self._taken_event)
        return self._copied

    def row_of(self, stamp: Stamp) -> int | None:
        """The row of the tree for a state that the pass has led to, if there is one."""
        row = self._rows.get((stamp.slot, stamp.generation))
        return None if row is None or self.values[row].stamp.base_length >= stamp.base_length else row

    def taken(self, row: int) -> bool:
        """Whether a row had a tree, be it an empty one; waits for it, as the following do."""
        return self._state(row) == ops.TAKEN

    def malformed(self, row: int) -> bool:
        """Whether it broke a rule."""
        return self._state(row) == ops.MALFORMED

    def came(self, row: int) -> bool:
        """Whether the drafter was done in time."""
        return self._state(row) != ops.NO_WORD

    def observe(self, now: float, *, in_time: bool) -> None:
        """Note whether the drafter was; see `DeviceQueue.on_word`."""
        self._queue.on_word(now, in_time=in_time)

    def _state(self, row: int) -> int:
        self.read(row)
        return self._states[row]

    def _take(self) -> None:
        self._taken = True
        seconds = 0.0 if self._queue.memory.closed else self.seconds
        self._taken_event = self._queue.take(self.number, self._table, seconds)
        self._queue.note_verified(self)


def _fill_table(number: int, values: Sequence[EnqueueRequest], table: NDArray[np.int32]) -> None:
    """Write the lines of the ops' table, int32 [any, TABLE], whose other columns are 0."""
    flat: list[int] = []
    for (_, slot, generation, length, root), row, _, _, max_nodes, max_depth in values:
        flat += (row, slot, generation & _GENERATION, length, root, max_nodes - 1, max_depth)
    columns, lines = np.array(flat, np.int32).reshape(-1, 7), table[: len(values)]
    lines[:, ops.SOURCE], lines[:, ops.PLACE] = columns[:, 0], np.arange(len(values))
    lines[:, ops.HEADER] = number
    lines[:, ops.HEADER + 1 : ops.HEADER + ops.HEADED] = columns[:, 1:5]
    lines[:, ops.NODES], lines[:, ops.DEPTH] = columns[:, 5], columns[:, 6]
