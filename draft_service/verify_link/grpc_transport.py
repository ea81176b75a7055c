"""Transport `grpc` where nobody sleeps while requests run: the event loop's thread and the worker wait for each other.

Each waits in compiled code while the other works, and has the interpreter once it is rung for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter

from draft_service.protocol.records import Record
from draft_service.verify_link.reply_queue import ReplyQueue
from slipstream_kernels.draft_protocol.records import Commit
from slipstream_kernels.sync.hybrid_event import HybridEvent
from slipstream_kernels.sync.spin_event import SpinEvent

ANSWER_SECONDS = 0.002
"""How long the event loop rests for the worker's answer to a step, at most."""
_PAUSE = 0.0002
"""Seconds that the event loop sleeps where the worker has something else to do."""


class GrpcRecordSource:
    """Records that the event loop reads, for the worker. Implements Feed."""

    __slots__ = ("_answered", "_arrived", "_asked", "_messages", "_sleeps_at", "_spin")

    def __init__(self, spin: float) -> None:
        """For `spin` seconds after a record both threads look for the next one without sleeping."""
        self._spin, self._sleeps_at = spin, 0.0
        self._arrived: deque[Sequence[Record]] = deque()
        self._messages = 0
        self._asked, self._answered = HybridEvent(), SpinEvent()

    # --- The event loop's thread ---

    def put(self, records: Sequence[Record]) -> None:
        """Hand over a message's records. Those of a step are waited for, for a moment: nothing else is to be done."""
        answered = self._answered.notified
        self._arrived.append(records)
        self._messages += 1
        self._asked.notify(yield_gil=False)
        if any(isinstance(record, Commit) and record.max_nodes > 1 for record in records):
            self._answered.wait(answered, ANSWER_SECONDS)

    async def poll(self, outbox: ReplyQueue) -> None:
        """Return when there is something to send, something was handed over, or the time to be awake is over.

        Keeps the event loop awake.
        """
        messages, until = self._messages, perf_counter() + self._spin
        while self._messages == messages and not len(outbox) and perf_counter() < until:  # noqa: ASYNC110 - not to sleep is the purpose
            await asyncio.sleep(0 if self._asked.awaited else _PAUSE)

    # --- The worker's thread ---

    def answered(self) -> None:
        """What was drafted is on its way to the event loop."""
        self._answered.notify(yield_gil=True)

    def receive(self) -> list[Record]:
        """What has arrived, in order."""
        records: list[Record] = []
        with suppress(IndexError):
            while True:
                records.extend(self._arrived.popleft())
        if records:
            self._sleeps_at = perf_counter() + self._spin
        return records

    def wait(self, seconds: float) -> None:
        """Return when something has arrived, when woken, or after `seconds`."""
        position = self._asked.position
        if not self._arrived:
            self._asked.wait(position, seconds, spin=self._sleeps_at - perf_counter())

    def wake(self) -> None:
        """End a wait. For any thread."""
        self._arrived.append(())
        self._asked.notify(yield_gil=False)

    def close(self) -> None:
        """Nothing is held."""
