"""The gateway's end of one text worker's socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from gateway.text.frames import ANSWER, read_answer

_LAST_LOOK_SECONDS: Final = 0.05


class WorkerEndedError(Exception):
    """The worker has ended, or was killed."""


class WorkerConnection(asyncio.Protocol):
    """One worker, which does one job at a time. `on_free` is called whenever it can take one, `on_end` when it is gone.

    `late` says that its last job was, `began` that it was ready once.
    """

    def __init__(
        self, number: int, on_free: Callable[[WorkerConnection], None], on_end: Callable[[WorkerConnection], None]
    ) -> None:
        self.number = number
        self.late = False
        self.began = False
        self._on_free = on_free
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio. The worker says that it is ready by an answer nobody asked for."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own has no such base

    def ask(
        self, head: bytes, payload: bytes | bytearray, seconds: float, on_late: Callable[[WorkerConnection], None]
    ) -> asyncio.Future[Any]:
        """Start a job. The result is the answer, the SlipstreamError that it raised, or WorkerEndedError.

        The job goes on to its end when nobody waits for it any more. `on_late` is called after so many seconds.
        """
        assert self._transport is not None
        assert self._answer is None
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        self._timer = loop.call_later(seconds, self._look_again, on_late)
        self._transport.writelines((head, payload))
        return self._answer

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        received = self._received
        received += data
        if len(received) < ANSWER.size:
            return
        failed, size = ANSWER.unpack_from(received)
        if len(received) < ANSWER.size + size:
            return
        with memoryview(received) as view, view[ANSWER.size :] as body:
            answer = read_answer(body)
        self._received = bytearray()
        self.began = True
        self._settle(failed=bool(failed), answer=answer)
        if not self.late:  # else it is about to be killed
            self._on_free(self)

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio."""
        self._settle(failed=True, answer=WorkerEndedError())
        self._on_end(self)

    def close(self) -> None:
        """Hang up, which ends an idle worker."""
        if self._transport is not None:
            self._transport.abort()

    def _look_again(self, on_late: Callable[[WorkerConnection], None]) -> None:
        """The time is up. An answer that waits in the socket, as after the gateway itself was stopped, still counts."""

        def end() -> None:
            self.late = True
            on_late(self)

        self._timer = asyncio.get_running_loop().call_later(_LAST_LOOK_SECONDS, end)

    def _settle(self, *, failed: bool, answer: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._answer, self._timer = self._answer, None, None
        if waiting is None or waiting.done():
            return
        if failed:
            waiting.set_exception(answer)
        else:
            waiting.set_result(answer)
