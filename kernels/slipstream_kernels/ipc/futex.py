"""Waiting for a word in shared memory to change, and waking who waits: Linux's futex, or short sleeps elsewhere."""

from __future__ import annotations

import ctypes
import errno
import platform
import sys
import time

_SYSCALL_NUMBERS = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}
_FUTEX = _SYSCALL_NUMBERS.get(platform.machine()) if sys.platform == "linux" else None
_WAIT, _WAKE = 0, 1  # of the futex(2) operations; without FUTEX_PRIVATE_FLAG, as the waiter is another process
_EVERYBODY = 2**31 - 1
POLL_SECONDS = 0.0002
"""How long a waiter sleeps at a time where there is no futex."""


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Futex:
    """A 32-bit word in shared memory, in its native byte order.

    Whoever changes the word calls `ring` afterwards. Nothing that a peer writes into the word can do more than let a
    waiter return early or wait to its time limit.
    """

    __slots__ = ("_address", "_wait", "_wake", "_word")

    def __init__(self, word: ctypes.c_uint32, *, futex: int | None = _FUTEX) -> None:
        self._word = word  # keeps the mapping alive while anyone waits
        self._address = ctypes.c_void_p(ctypes.addressof(word))
        # Waiting lets other Python threads run. Waking takes less than handing the interpreter over and back.
        self._wait = None if futex is None else _system_call(ctypes.CDLL(None, use_errno=True), futex)
        self._wake = None if futex is None else _system_call(ctypes.PyDLL(None, use_errno=True), futex)

    @property
    def address(self) -> int:
        """Of the word, as long as this object lives."""
        return ctypes.addressof(self._word)

    def wait(self, seen: int, seconds: float) -> None:
        """Return when the word no longer equals `seen`, somebody rings, or after `seconds`; also for no reason.

        `seen` must have been read before the caller checked that there is nothing to do.
        """
        if seconds <= 0:
            return
        if self._wait is None:
            time.sleep(min(seconds, POLL_SECONDS))
            return
        whole = int(seconds)
        limit = _Timespec(whole, int((seconds - whole) * 1e9))
        result = self._wait(self._address, _WAIT, seen & 0xFFFFFFFF, ctypes.byref(limit), None, 0)
        if result != 0 and ctypes.get_errno() not in {errno.EAGAIN, errno.ETIMEDOUT, errno.EINTR}:
            time.sleep(min(seconds, POLL_SECONDS))

    def ring(self) -> None:
        """Wake whoever waits. Never blocks."""
        if self._wake is not None:
            self._wake(self._address, _WAKE, _EVERYBODY, None, None, 0)


class _SystemCall:
    """One system call whose arguments are those of futex(2)."""

    __slots__ = ("_function", "_number")

    def __init__(self, library: ctypes.CDLL, number: int) -> None:
        self._function = library["syscall"]
        self._function.restype = ctypes.c_long
        self._function.argtypes = (
            ctypes.c_long,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint32,
        )
        self._number = number

    def __call__(self, *arguments: object) -> int:
        return int(self._function(self._number, *arguments))


def _system_call(library: ctypes.CDLL, number: int) -> _SystemCall:
    return _SystemCall(library, number)
