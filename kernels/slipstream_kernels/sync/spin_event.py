"""Two threads of one process that work in turn: who waits does so awake, and the interpreter is free as it wakes.

A thread that sleeps takes tens of microseconds to wake, and one that needs the interpreter while another thread holds
it sleeps too. So neither holds it here: the bell is rung and heard by compiled code.
"""

from __future__ import annotations

import time

import numpy as np

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import atomic_add, atomic_load, pause
from slipstream_kernels.sync.spin_wait import spin_wait

_TRIAL = 10_000
"""Looks that are timed."""
_HAND_OVER_SECONDS = 5e-5
"""How long whoever rings leaves the interpreter to the listener, at most."""
_HEARD = 8
"""Index of the word that says which ring was heard last; it has a cache line of its own."""


class SpinEvent:
    """Rung by any thread, awaited by one."""

    __slots__ = ("_address", "_awaited", "_looks", "_words")

    def __init__(self) -> None:
        self._words = np.zeros(2 * _HEARD, np.int64)
        self._address = self._words.ctypes.data
        self._awaited = False
        _ring(self._address, 0)
        spin_wait(self._address, 1, 1)  # both are compiled now
        self._looks = _TRIAL / min(self._time_of(_TRIAL) for _ in range(5))
        """in a second"""

    @property
    def rung(self) -> int:
        """How often it was rung so far."""
        return int(self._words[0])

    @property
    def awaited(self) -> bool:
        """Whether the other thread listens."""
        return self._awaited

    def ring(self, *, give_way: bool) -> None:
        """Wake the thread that listens; with `give_way` it gets a moment to take the interpreter."""
        _ring(self._address, int(self._looks * _HAND_OVER_SECONDS) if give_way and self._awaited else 0)

    def listen(self, rung: int, seconds: float) -> None:
        """Return once it was rung more often than `rung` times, or after about `seconds`."""
        self._awaited = True
        spin_wait(self._address, rung, int(self._looks * seconds))
        self._awaited = False
        self._words[_HEARD] = self._words[0]

    def _time_of(self, looks: int) -> float:
        begun = time.perf_counter()
        spin_wait(self._address, self.rung, looks)
        return time.perf_counter() - begun


@kernel
def _ring(address: int, turns: int) -> None:
    rung = atomic_add(address, 1) + 1
    for _ in range(turns):
        if atomic_load(address + 8 * _HEARD) >= rung:
            break
        pause()
