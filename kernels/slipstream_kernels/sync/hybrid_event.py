"""A bell whose listener stays awake for a while and then sleeps."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from slipstream_kernels.sync.spin_event import SpinEvent


class HybridEvent:
    """Rung by any thread, awaited by one."""

    __slots__ = ("_bell", "_woken")

    def __init__(self) -> None:
        self._bell = SpinEvent()
        self._woken = Lock()
        """Locked until a sleeper is to wake"""
        self._woken.acquire()

    @property
    def position(self) -> int:
        """How often it was rung so far."""
        return self._bell.rung

    @property
    def awaited(self) -> bool:
        """Whether a thread is awake for it, and needs no interpreter meanwhile."""
        return self._bell.awaited

    def ring(self, *, give_way: bool) -> None:
        """Wake who waits. With `give_way` one that is awake gets a moment to take the interpreter."""
        self._bell.ring(give_way=give_way)
        if self._woken.locked():
            with suppress(RuntimeError):  # another thread was quicker
                self._woken.release()

    def wait(self, position: int, seconds: float, *, awake: float) -> None:
        """Return once it was rung beyond `position`, or after about `seconds`, awake for the first `awake`."""
        awake = max(0.0, min(seconds, awake))
        if awake:
            self._bell.listen(position, awake)
        self._woken.acquire(blocking=False)
        if self._bell.rung == position and seconds > awake:
            self._woken.acquire(timeout=seconds - awake)
