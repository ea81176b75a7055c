"""Commands arrive in order, and a reader without work sleeps."""

from __future__ import annotations

import threading

from verify_service.engine.command_queue import CancelSession, CommandQueue, Drain, Stop


def test_commands_come_in_order_and_once() -> None:
    inbox = CommandQueue()
    inbox.put(CancelSession(1))
    inbox.put(Drain())
    assert inbox.take(wait=True) == [CancelSession(1), Drain()]
    assert inbox.take(wait=False) == []


def test_idle_means_asleep_with_nothing_to_read() -> None:
    inbox = CommandQueue()
    assert not inbox.wait_idle(0.0)
    got: list[object] = []
    reader = threading.Thread(target=lambda: got.extend(inbox.take(wait=True)))
    reader.start()
    assert inbox.wait_idle(10.0)
    inbox.put(Stop())
    assert not inbox.wait_idle(0.0)
    reader.join(10.0)
    assert got == [Stop()]
