"""Threads that wake each other."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread
from time import sleep

from slipstream_kernels.sync.spin_event import SpinEvent

FOREVER = 1e4
SECONDS = 30.0


def test_two_threads_take_turns() -> None:
    there, back = SpinEvent(), SpinEvent()
    seen: list[int] = []

    def answer() -> None:
        notified = there.notified
        for _ in range(20):
            there.wait(notified, FOREVER)
            notified = there.notified
            seen.append(notified)
            back.notify(yield_gil=True)

    thread = Thread(target=answer)
    begin, notified = there.notified, back.notified
    thread.start()
    while not there.awaited:
        sleep(0.0001)
    for _ in range(20):
        there.notify(yield_gil=True)
        back.wait(notified, FOREVER)
        notified = back.notified
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert seen == [begin + 1 + turn for turn in range(20)]
    assert not there.awaited


def test_what_was_rung_before_is_not_waited_for() -> None:
    event = SpinEvent()
    notified = event.notified
    event.notify(yield_gil=True)
    event.notify(yield_gil=False)
    assert event.notified == notified + 2
    event.wait(notified, FOREVER)


def test_listening_ends_by_itself_and_lets_other_threads_run() -> None:
    event, ran = SpinEvent(), SimpleQueue[int]()
    thread = Thread(target=lambda: ran.put(event.notified))
    thread.start()
    event.wait(event.notified, 0.01)
    assert ran.get(timeout=SECONDS) == event.notified
    thread.join(SECONDS)
