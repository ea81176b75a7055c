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
        rung = there.rung
        for _ in range(20):
            there.listen(rung, FOREVER)
            rung = there.rung
            seen.append(rung)
            back.ring(give_way=True)

    thread = Thread(target=answer)
    begin, rung = there.rung, back.rung
    thread.start()
    while not there.awaited:
        sleep(0.0001)
    for _ in range(20):
        there.ring(give_way=True)
        back.listen(rung, FOREVER)
        rung = back.rung
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert seen == [begin + 1 + turn for turn in range(20)]
    assert not there.awaited


def test_what_was_rung_before_is_not_waited_for() -> None:
    bell = SpinEvent()
    rung = bell.rung
    bell.ring(give_way=True)
    bell.ring(give_way=False)
    assert bell.rung == rung + 2
    bell.listen(rung, FOREVER)


def test_listening_ends_by_itself_and_lets_other_threads_run() -> None:
    bell, ran = SpinEvent(), SimpleQueue[int]()
    thread = Thread(target=lambda: ran.put(bell.rung))
    thread.start()
    bell.listen(bell.rung, 0.01)
    assert ran.get(timeout=SECONDS) == bell.rung
    thread.join(SECONDS)
