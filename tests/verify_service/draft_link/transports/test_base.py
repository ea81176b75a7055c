"""A step's thread lets the thread of the calls write what it has sent, and waits in vain only once."""

from __future__ import annotations

import pytest

from slipstream_kernels.sync.hybrid_event import HybridEvent
from slipstream_kernels.sync.spin_event import SpinEvent
from verify_service.draft_link.send_queue import SendQueue
from verify_service.draft_link.transports.base import StreamTransport


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each wait for an event, whether it was notified by its end."""
    found: list[bool] = []
    wait = SpinEvent.wait

    def counted(event: SpinEvent, notified: int, seconds: float) -> None:
        wait(event, notified, seconds)
        found.append(event.notified != notified)

    monkeypatch.setattr(SpinEvent, "wait", counted)
    return found


def test_what_is_written_is_waited_for(waits: list[bool]) -> None:
    transport = StreamTransport(lambda: None, HybridEvent(), spin=0.001)
    for _ in range(2):
        transport.send(SendQueue(100))
        transport.written()
        transport.yield_gil()
        transport.yield_gil()  # nothing was sent since
    assert waits == [True, True]


def test_what_nobody_writes_is_waited_for_once(waits: list[bool]) -> None:
    transport = StreamTransport(lambda: None, HybridEvent(), spin=0.001)
    for _ in range(3):
        transport.send(SendQueue(100))
        transport.yield_gil()
    assert waits == [False]
    transport.written()
    transport.send(SendQueue(100))
    transport.yield_gil()
    assert waits == [False, False]


def test_without_an_alarm_nobody_waits(waits: list[bool]) -> None:
    transport = StreamTransport(lambda: None)
    transport.send(SendQueue(100))
    transport.yield_gil()
    assert not waits and not transport.polled
