"""An event whose waiter spins for a while and then sleeps."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from slipstream_kernels.sync.spin_event import SpinEvent


class HybridEvent:
    """Notified by any thread, awaited by one."""

    __slots__ = ("_event", "_woken")

    def __init__(self) -> None:
        self._event = SpinEvent()
        self._woken = Lock()
        """Locked until a sleeper is to wake."""
        self._woken.acquire()

    @property
    def position(self) -> int:
        """Number of notifications so far."""
        return self._event.notified

    @property
    def awaited(self) -> bool:
        """Whether a thread spins on it, which needs no GIL."""
        return self._event.awaited

    def notify(self, *, yield_gil: bool) -> None:
        """Wake the waiter. yield_gil: leave one that spins a moment to take the GIL."""
        self._event.notify(yield_gil=yield_gil)
        if self._woken.locked():
            with suppress(RuntimeError):  # another thread was quicker
                self._woken.release()

    def wait(self, position: int, seconds: float, *, spin: float) -> None:
        """Wait for a notification beyond `position`, about `seconds` at most; spin for the first `spin` seconds."""
        spin = max(0.0, min(seconds, spin))
        if spin:
            self._event.wait(position, spin)
        self._woken.acquire(blocking=False)
        if self._event.notified == position and seconds > spin:
            self._woken.acquire(timeout=seconds - spin)
