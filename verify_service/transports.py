"""How records travel between the draft link and one drafter; what they mean is the same on every way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from verify_service.draft_records import Reply
from verify_service.outbox import Outbox

Wake = Callable[[], None]
"""Tells the Exchange's task that there is something to do for it; may be called from any thread."""


class Transport(Protocol):
    """One attachment's transport. Nothing here blocks or raises except as stated.

    Every method but `wait` and `give_way` is called under the link's lock.
    """

    @property
    def name(self) -> str:
        """As negotiated in Attach."""
        ...

    @property
    def polled(self) -> bool:
        """Whether records are picked up by `receive`; otherwise the Exchange's task hands them to the link."""
        ...

    def send(self, outbox: Outbox) -> None:
        """Send what waits, as far as that goes without waiting."""
        ...

    def give_way(self) -> None:
        """Let a drafter that shares the interpreter begin with what was sent; sleeps for a moment. Without the lock."""
        ...

    def receive(self) -> list[tuple[list[Reply], int]]:
        """What has arrived: each message's replies and its size in bytes. A bounded number of messages a call.

        InvalidArgumentError if the drafter wrote what no correct drafter writes.
        """
        ...

    @property
    def position(self) -> int:
        """How far what has arrived was received, for `wait`."""
        ...

    def wait(self, seconds: float, position: int) -> None:
        """Return when something has arrived beyond `position`, after `close`, or after `seconds`.

        Called without the lock: what has arrived may have been received by another thread already.
        """
        ...

    def close(self) -> None:
        """The attachment is over: end a wait, let go of what was held, and tell the Exchange's task."""
        ...


class StreamTransport:
    """`grpc`: the Exchange's task takes records from the outbox and hands over what it reads."""

    __slots__ = ("_wake",)

    name = "grpc"
    polled = False

    def __init__(self, wake: Wake) -> None:
        self._wake = wake

    def send(self, outbox: Outbox) -> None:
        self._wake()

    def give_way(self) -> None:
        return None

    def receive(self) -> list[tuple[list[Reply], int]]:
        return []

    @property
    def position(self) -> int:
        return 0

    def wait(self, seconds: float, position: int) -> None:
        return None

    def close(self) -> None:
        self._wake()
