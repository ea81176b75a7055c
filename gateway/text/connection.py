"""The gateway's end of one text worker's socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from gateway.text.frames import ANSWER, Kind, read_answer, request_head
from gateway.text.prepared import WorkerTask

_LAST_LOOK_SECONDS: Final = 0.05
CHECK_SECONDS: Final = 0.5
"""The longest that a worker checks a grammar. The verify service does that, too: it decides on what takes longer."""


class WorkerEndedError(Exception):
    """The worker has ended, or was killed."""


class WorkerConnection(asyncio.Protocol):
    """One worker, which does one job at a time. `on_free` is called whenever it can take one, `on_end` when it is gone.

    `on_late` is called when a job has taken so many seconds. `late` says that the last one did, `began` that the worker
    was ready once.
    """

    def __init__(
        self,
        number: int,
        seconds: float,
        *,
        on_free: Callable[[WorkerConnection], None],
        on_late: Callable[[WorkerConnection], None],
        on_end: Callable[[WorkerConnection], None],
    ) -> None:
        self.number = number
        self.late = False
        self.began = False
        self._seconds = seconds
        self._on_free = on_free
        self._on_late = on_late
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._facts = b""
        self._answer: asyncio.Future[Any] | None = None
        self._unchecked: Any = None  # the answer, where its check is under way
        self._deadline = 0.0  # of the job, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None  # goes off at the deadline of this job or of an earlier one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio. The worker says that it is ready by an answer nobody asked for."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own has no such base

    def ask(self, job: WorkerTask, facts: bytes, payload: bytes | bytearray) -> asyncio.Future[Any]:
        """Start a job for the model of these pickled facts, which cross where they are other than the last job's.

        The result is the answer, the SlipstreamError that it raised, or WorkerEndedError. An answer whose check ends
        the worker, or takes too long, is the result unchecked. The job goes on to its end when nobody waits for it any
        more.
        """
        assert self._transport is not None
        assert self._answer is None
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._deadline = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(self._deadline, self._look)
        head = request_head(job, b"" if facts == self._facts else facts, payload)
        self._facts = facts
        self._transport.writelines((head, payload))
        return self._answer

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        received = self._received
        received += data
        while len(received) >= ANSWER.size:
            kind, size = ANSWER.unpack_from(received)
            end = ANSWER.size + size
            if len(received) < end:
                return
            with memoryview(received) as view, view[ANSWER.size : end] as body:
                answer = read_answer(body)
            del received[:end]
            self._take(Kind(kind), answer)

    def _take(self, kind: Kind, answer: Any) -> None:
        if kind is Kind.UNCHECKED:
            self._unchecked = answer
            self._shorten(CHECK_SECONDS)
            return
        self.began = True
        found = self._unchecked if kind is Kind.RESULT and self._unchecked is not None else answer
        self._settle(failed=kind is Kind.ERROR, answer=found)
        if not self.late:  # else it is about to be killed
            self._on_free(self)

    def _shorten(self, seconds: float) -> None:
        """Leave the job under way so much time from now on, at most."""
        loop = asyncio.get_running_loop()
        self._deadline = min(self._deadline, loop.time() + seconds)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._deadline, self._look)

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio."""
        if self._timer is not None:
            self._timer.cancel()
        if self._unchecked is not None:
            self._settle(failed=False, answer=self._unchecked)
        self._settle(failed=True, answer=WorkerEndedError())
        self._on_end(self)

    def close(self) -> None:
        """Hang up, which ends an idle worker."""
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        """See whether the job's time is up. One timer serves all the jobs of its time: few jobs come to their end."""
        loop = asyncio.get_running_loop()
        self._timer = None
        if self._answer is None:
            return
        if loop.time() < self._deadline:
            self._timer = loop.call_at(self._deadline, self._look)
        else:
            self._timer = loop.call_later(_LAST_LOOK_SECONDS, self._look_again, self._answer)

    def _look_again(self, answer: asyncio.Future[Any]) -> None:
        """An answer that waited in the socket, as after the gateway itself was stopped, still counts."""
        self._timer = None
        if self._answer is answer:
            self.late = True
            self._on_late(self)
        else:
            self._look()

    def _settle(self, *, failed: bool, answer: Any) -> None:
        waiting, self._answer, self._unchecked = self._answer, None, None
        if waiting is None or waiting.done():
            return
        if failed:
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)
