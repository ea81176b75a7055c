"""A crowd of clients that open connections and keep the server waiting, from processes of their own."""

from __future__ import annotations

import errno
import multiprocessing
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.sharedctypes import SynchronizedArray
from multiprocessing.synchronize import Event
from typing import Final

from slipstream.rpc.descriptors import raise_limit

SOCKETS_A_PROCESS: Final = 10_000
SPARE_DESCRIPTORS: Final = 200
OPENED_A_SECOND: Final = 500
"""Of one process by default, so that the machine is not busy with handshakes alone."""
TICK_SECONDS: Final = 0.05
DRIBBLE_SECONDS: Final = 2.0
"""Between two bytes of the clients that send slowly."""
SOURCES: Final = 50
"""Loopback addresses to connect from, as one has no more ports than some 28,000."""

_HEAD: Final = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
GREETINGS: Final[dict[str, bytes]] = {
    "silent": b"",
    "head": _HEAD + b"x: ",
    "body": _HEAD + b"content-length: 1000\r\n\r\n",
    "http2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
}
"""What a client of each kind sends at first; those that have begun a request go on byte by byte."""

_SLOW: Final = frozenset({"head", "body"})
_IN_PROGRESS: Final = (0, errno.EINPROGRESS)
OPEN, OPENED, ANSWERED, CLOSED = range(4)


@dataclass(frozen=True, slots=True)
class Group:
    """`count` clients of each of the `kinds`, in turns, of the server at `address` (host:port)."""

    address: str
    count: int
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CrowdState:
    """Connections open at the moment, and since the start: opened, answered with something, closed by the server."""

    open: int
    opened: int
    answered: int
    closed: int


class Crowd:
    """See `gathered`."""

    def __init__(self, counters: Sequence[SynchronizedArray[int]]) -> None:
        self._counters = counters

    def state(self) -> CrowdState:
        """Totals of all processes."""
        return CrowdState(*(sum(each[index] for each in self._counters) for index in range(4)))


@contextmanager
def gathered(groups: Sequence[Group], seconds: float) -> Iterator[Crowd]:
    """Clients that come, and come again when the server closes their connection, for `seconds` at most."""
    context = multiprocessing.get_context("spawn")
    stop, counters = context.Event(), []
    with ExitStack() as stack:
        stack.callback(stop.set)
        number = 0
        for group in groups:
            for begin in range(0, group.count, SOCKETS_A_PROCESS):
                part = Group(group.address, min(SOCKETS_A_PROCESS, group.count - begin), group.kinds)
                counter: SynchronizedArray[int] = context.Array("q", 4)
                process = context.Process(target=_attend, args=(part, number, seconds, stop, counter), daemon=True)
                process.start()
                stack.callback(process.join, 30.0)
                stack.callback(stop.set)
                counters.append(counter)
                number += 1
        yield Crowd(counters)


def _attend(group: Group, number: int, seconds: float, stop: Event, counter: SynchronizedArray[int]) -> None:
    """One process of the crowd."""
    room = raise_limit() - SPARE_DESCRIPTORS
    clients = _Clients(group, number, counter, min(group.count, room))
    deadline = time.monotonic() + seconds
    while not stop.wait(TICK_SECONDS) and time.monotonic() < deadline:
        clients.tick()
    clients.close()


class _Clients:
    """The connections of one process."""

    def __init__(self, group: Group, number: int, counter: SynchronizedArray[int], count: int) -> None:
        host, port = group.address.rsplit(":", 1)
        self._address = (host, int(port))
        self._kinds = group.kinds
        self._number = number
        self._counter = counter
        self._count = count
        self._selector = selectors.DefaultSelector()
        self._dribbled = time.monotonic()

    def tick(self) -> None:
        """Open what is missing, notice what was closed, and send on slowly."""
        missing = self._count - len(self._selector.get_map())
        for _ in range(min(missing, int(OPENED_A_SECOND * TICK_SECONDS))):
            self._open()
        for key, events in self._selector.select(0):
            end, kind = key.fileobj, key.data
            assert isinstance(end, socket.socket)
            if events & selectors.EVENT_WRITE and not self._greet(end, kind):
                continue
            if events & selectors.EVENT_READ:
                self._read(end)
        now = time.monotonic()
        if now >= self._dribbled + DRIBBLE_SECONDS:
            self._dribbled = now
            for key in list(self._selector.get_map().values()):
                end = key.fileobj
                assert isinstance(end, socket.socket)
                if key.data in _SLOW and key.events == selectors.EVENT_READ:
                    self._send(end, b"x")
        self._counter[OPEN] = len(self._selector.get_map())

    def close(self) -> None:
        """Close all."""
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._counter[OPEN] = 0

    def _open(self) -> None:
        opened = self._counter[OPENED]
        end = socket.socket()
        end.setblocking(False)
        end.bind((f"127.0.{self._number + 1}.{opened // 1000 % SOURCES + 1}", 0))
        if end.connect_ex(self._address) not in _IN_PROGRESS:
            end.close()
            return
        kind = self._kinds[opened % len(self._kinds)]
        self._selector.register(end, selectors.EVENT_READ | selectors.EVENT_WRITE, kind)
        self._counter[OPENED] = opened + 1

    def _greet(self, end: socket.socket, kind: str) -> bool:
        self._selector.modify(end, selectors.EVENT_READ, kind)
        return self._send(end, GREETINGS[kind])

    def _send(self, end: socket.socket, part: bytes) -> bool:
        try:
            end.send(part)
        except BlockingIOError:
            return True
        except OSError:
            self._drop(end)
            return False
        return True

    def _read(self, end: socket.socket) -> None:
        try:
            received = end.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if received:
            self._counter[ANSWERED] += 1
        else:
            self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        self._selector.unregister(end)
        end.close()
        self._counter[CLOSED] += 1
