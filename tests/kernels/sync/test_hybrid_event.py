"""An event whose waiter spins and then sleeps."""

from __future__ import annotations

from threading import Thread
from time import perf_counter, sleep

import pytest

from slipstream_kernels.sync.hybrid_event import HybridEvent

SECONDS = 30.0


@pytest.mark.parametrize("spin", [0.0, 0.001, SECONDS])
def test_who_waits_is_woken_awake_or_asleep(spin: float) -> None:
    there, back = HybridEvent(), HybridEvent()
    turns: list[int] = []

    def answer() -> None:
        for turn in range(20):
            there.wait(first + turn, SECONDS, spin=spin)
            turns.append(there.position)
            back.notify(yield_gil=True)

    first, before = there.position, back.position
    thread = Thread(target=answer)
    thread.start()
    for turn in range(20):
        if turn % 5 == 0:
            sleep(0.003)
        there.notify(yield_gil=bool(turn % 2))
        back.wait(before + turn, SECONDS, spin=spin)
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert turns == list(range(first + 1, first + 21))
    assert not there.awaited


def test_what_was_rung_before_is_not_waited_for_nor_is_it_the_next_time() -> None:
    event = HybridEvent()
    position = event.position
    event.notify(yield_gil=False)
    event.notify(yield_gil=True)
    event.wait(position, SECONDS, spin=0.0)
    begun = perf_counter()
    event.wait(event.position, 0.01, spin=0.0)
    assert perf_counter() - begun >= 0.009
