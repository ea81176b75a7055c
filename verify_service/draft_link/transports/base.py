"""How records travel between the draft link and one drafter; what they mean is the same on every way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from slipstream_kernels.draft_protocol.records import Reply
from slipstream_kernels.sync.hybrid_event import HybridEvent
from slipstream_kernels.sync.spin_event import SpinEvent
from verify_service.draft_link.send_queue import SendQueue

Wake = Callable[[], None]
"""Tells the Exchange's task that there is something to do for it; may be called from any thread."""

YIELD_SECONDS = 5e-4
"""How long a step's thread lets that of the calls write what it has sent, at most, before it goes on beside it."""


class Transport(Protocol):
    """One attachment's transport. Nothing here blocks or raises except as stated.

    Every method but `wait`, `yield_gil` and `release` is called under the link's lock.
    """

    @property
    def name(self) -> str:
        """As negotiated in Attach."""
        ...

    @property
    def polled(self) -> bool:
        """Whether `wait` tells when something has arrived; otherwise the link itself is told."""
        ...

    def send(self, outbox: SendQueue) -> None:
        """Send what waits, as far as that goes without waiting."""
        ...

    def yield_gil(self) -> None:
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
        """The attachment is over: end a wait, and tell the Exchange's task. Nothing is sent or received any more."""
        ...

    def release(self) -> None:
        """Let go of what was held, which may take milliseconds: after `close`, without the lock, and off a step's way.

        Waits until nobody is in `wait`.
        """
        ...


class StreamTransport:
    """`grpc`: the Exchange's task takes records from the outbox and hands over what it reads.

    With an alarm a step's thread waits awake for `spin` seconds, and until what it sent is written. `heard` tells it
    that something was handed over, `written` that the outbox was emptied.
    """

    __slots__ = ("_alarm", "_missed", "_sent", "_spin", "_wake", "_written")

    name = "grpc"

    def __init__(self, wake: Wake, alarm: HybridEvent | None = None, *, spin: float = 0.0) -> None:
        self._wake = wake
        self._alarm = alarm
        self._spin = spin
        self._written = SpinEvent() if alarm is not None else None
        self._sent: int | None = None
        """How often the outbox had been emptied as something was sent that nobody has waited for yet."""
        self._missed: int | None = None
        """The same, of what was waited for in vain: nothing more is until it has been written."""

    @property
    def polled(self) -> bool:
        return self._alarm is not None

    @property
    def awaited(self) -> bool:
        """Whether a step's thread is awake for what comes, and needs no interpreter meanwhile."""
        return self._alarm is not None and self._alarm.awaited

    def heard(self) -> None:
        """The link has what has come."""
        if self._alarm is not None:
            self._alarm.notify(yield_gil=True)

    def written(self) -> None:
        """The outbox was emptied, by the Exchange's task."""
        if self._written is not None:
            self._written.notify(yield_gil=True)

    def send(self, outbox: SendQueue) -> None:
        if self._written is not None:
            self._sent = self._written.notified
        self._wake()

    def yield_gil(self) -> None:
        sent, self._sent = self._sent, None
        if self._written is not None and sent is not None and sent != self._missed:
            self._written.wait(sent, YIELD_SECONDS)
            self._missed = sent if self._written.notified == sent else None

    def receive(self) -> list[tuple[list[Reply], int]]:
        return []

    @property
    def position(self) -> int:
        return 0 if self._alarm is None else self._alarm.position

    def wait(self, seconds: float, position: int) -> None:
        if self._alarm is not None:
            self._alarm.wait(position, seconds, spin=self._spin)

    def close(self) -> None:
        if self._alarm is not None:
            self._alarm.notify(yield_gil=False)
        self._wake()

    def release(self) -> None:
        return None
