"""An event for two threads of one process that work in turn: the waiter spins without the GIL.

A sleeping thread takes tens of microseconds to wake, and a thread that needs the GIL while another holds it sleeps too.
So compiled code notifies and spins, without the GIL.
"""

from __future__ import annotations

import time

import numpy as np

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import atomic_add, atomic_load, pause
from slipstream_kernels.sync.spin_wait import spin_wait

_TIMED_POLLS = 10_000
"""Polls that are timed."""
_HAND_OVER_SECONDS = 5e-5
"""Longest time that `notify` leaves the GIL to the waiter."""
_SEEN = 8
"""Index of the word with the last notification that was seen; it has a cache line of its own."""


class SpinEvent:
    """Notified by any thread, awaited by one."""

    __slots__ = ("_address", "_awaited", "_polls_per_second", "_words")

    def __init__(self) -> None:
        self._words = np.zeros(2 * _SEEN, np.int64)
        self._address = self._words.ctypes.data
        self._awaited = False
        _notify(self._address, 0)
        spin_wait(self._address, 1, 1)  # both are compiled now
        self._polls_per_second = _TIMED_POLLS / min(self._time_of(_TIMED_POLLS) for _ in range(5))

    @property
    def notified(self) -> int:
        """Number of notifications so far."""
        return int(self._words[0])

    @property
    def awaited(self) -> bool:
        """Whether the other thread waits."""
        return self._awaited

    def notify(self, *, yield_gil: bool) -> None:
        """Wake the waiter. yield_gil: leave it a moment to take the GIL."""
        _notify(self._address, int(self._polls_per_second * _HAND_OVER_SECONDS) if yield_gil and self._awaited else 0)

    def wait(self, notified: int, seconds: float) -> None:
        """Wait for a notification beyond the `notified`-th, about `seconds` at most."""
        self._awaited = True
        spin_wait(self._address, notified, int(self._polls_per_second * seconds))
        self._awaited = False
        self._words[_SEEN] = self._words[0]

    def _time_of(self, polls: int) -> float:
        begun = time.perf_counter()
        spin_wait(self._address, self.notified, polls)
        return time.perf_counter() - begun


@kernel
def _notify(address: int, turns: int) -> None:
    notified = atomic_add(address, 1) + 1
    for _ in range(turns):
        if atomic_load(address + 8 * _SEEN) >= notified:
            break
        pause()
