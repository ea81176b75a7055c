"""Who gets the next free text worker."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from gateway.text.connection import WorkerConnection
from slipstream.rpc.errors import ResourceExhaustedError, UnavailableError

_MOST_WAITING: Final = 1024
_WAITING_SECONDS: Final = 60.0


class WorkerQueue:
    """Workers to those who wait for one, first come, first served, in two lanes.

    Large jobs may hold all workers but one, so that small ones never wait for the end of a large one; of two that
    could go next, the one that came first does. With one worker the lanes are one.
    """

    __slots__ = ("_idle", "_lanes", "_large", "_most_large", "_order")

    def __init__(self, workers: int) -> None:
        self._most_large = max(1, workers - 1)
        self._large: set[WorkerConnection] = set()  # that do a large job
        self._idle: list[WorkerConnection] = []
        self._lanes: dict[bool, deque[tuple[int, asyncio.Future[WorkerConnection]]]] = {False: deque(), True: deque()}
        self._order = 0

    async def take(self, *, large: bool) -> WorkerConnection:
        """A worker for one job, given back by `free` once that is done, or by `discard`.

        ResourceExhaustedError if too many wait, UnavailableError if it takes too long.
        """
        lane = self._lanes[large]
        if self._idle and (not large or len(self._large) < self._most_large):
            return self._taken(large=large)  # nobody waits who could have it
        if len(lane) >= _MOST_WAITING:
            waiting = [entry for entry in lane if not entry[1].done()]  # others gave up waiting
            lane.clear()
            lane.extend(waiting)
        if len(lane) >= _MOST_WAITING:
            raise ResourceExhaustedError(f"{len(lane)} requests wait to be tokenised; retry later")
        self._order += 1
        turn: asyncio.Future[WorkerConnection] = asyncio.get_running_loop().create_future()
        lane.append((self._order, turn))
        self._dispatch()
        try:
            return await asyncio.wait_for(turn, _WAITING_SECONDS) if not turn.done() else turn.result()
        except TimeoutError:
            raise UnavailableError("no text worker was free in time; retry later") from None
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.free(turn.result())
            raise

    def free(self, worker: WorkerConnection) -> None:
        """A worker can take a job."""
        self._large.discard(worker)
        self._idle.append(worker)
        self._dispatch()

    def discard(self, worker: WorkerConnection) -> None:
        """A worker has gone."""
        self._large.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        self._dispatch()

    def _dispatch(self) -> None:
        while self._idle and (lane := self._next()) is not None:
            _, turn = lane.popleft()
            turn.set_result(self._taken(large=lane is self._lanes[True]))

    def _taken(self, *, large: bool) -> WorkerConnection:
        worker = self._idle.pop()
        if large:
            self._large.add(worker)
        return worker

    def _next(self) -> deque[tuple[int, asyncio.Future[WorkerConnection]]] | None:
        """The lane whose first one goes next."""
        for lane in self._lanes.values():
            while lane and lane[0][1].done():  # gave up waiting
                lane.popleft()
        small, large = self._lanes[False], self._lanes[True]
        if large and len(self._large) < self._most_large and (not small or large[0][0] < small[0][0]):
            return large
        return small or None
