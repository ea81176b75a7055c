"""A bell whose listener falls asleep."""

from __future__ import annotations

from threading import Thread
from time import perf_counter, sleep

import pytest

from slipstream_kernels.sync.hybrid_event import HybridEvent

SECONDS = 30.0


@pytest.mark.parametrize("awake", [0.0, 0.001, SECONDS])
def test_who_waits_is_woken_awake_or_asleep(awake: float) -> None:
    there, back = HybridEvent(), HybridEvent()
    turns: list[int] = []

    def answer() -> None:
        for turn in range(20):
            there.wait(first + turn, SECONDS, awake=awake)
            turns.append(there.position)
            back.ring(give_way=True)

    first, before = there.position, back.position
    thread = Thread(target=answer)
    thread.start()
    for turn in range(20):
        if turn % 5 == 0:
            sleep(0.003)
        there.ring(give_way=bool(turn % 2))
        back.wait(before + turn, SECONDS, awake=awake)
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert turns == list(range(first + 1, first + 21))
    assert not there.awaited


def test_what_was_rung_before_is_not_waited_for_nor_is_it_the_next_time() -> None:
    alarm = HybridEvent()
    position = alarm.position
    alarm.ring(give_way=False)
    alarm.ring(give_way=True)
    alarm.wait(position, SECONDS, awake=0.0)
    begun = perf_counter()
    alarm.wait(alarm.position, 0.01, awake=0.0)
    assert perf_counter() - begun >= 0.009
