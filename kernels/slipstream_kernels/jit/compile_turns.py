"""One process at a time compiles a kernel, the others wait for what it leaves on the disk.

A verify and a draft service that start together for the first time need the same kernels: each would take the cores of
the other for work that is done twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LONGEST_WAIT = 60.0
"""Seconds after which a kernel is compiled here, too: the process that compiles it may be stopped."""
_POLL = 0.02
_OF_THREAD = threading.local()


class NotOnDiskError(Exception):
    """A function that is read from the disk alone has to be compiled."""


@contextlib.contextmanager
def reading_only() -> Iterator[None]:
    """Within, the calling thread's first call of a function raises NotOnDiskError where the disk has no compiled one.

    Nothing is compiled then. A function that no folder keeps is compiled all the same, as is any for another thread.
    """
    _OF_THREAD.reads_only = True
    try:
        yield
    finally:
        _OF_THREAD.reads_only = False


class CompileTurns:
    """Goes between a numba function and its cache on the disk.

    numba asks the cache for an overload, compiles what is not there and saves it, all under its own lock. From the
    answer "not there" until the result is saved a lock file keeps other processes waiting. Where there can be none,
    each compiles for itself. The system frees the lock of a process that ends.
    """

    def __init__(self, cache: Any, longest_wait: float = LONGEST_WAIT) -> None:
        """cache: an object with the methods of `numba.core.caching.Cache`, which are replaced."""
        self._load, self._save = cache.load_overload, cache.save_overload
        name = cache._impl.filename_base  # noqa: SLF001 - numba tells nobody how it names its files
        self._path = Path(cache.cache_path) / f"{name}.lock"
        self._longest_wait = longest_wait
        self._lock = -1
        self._depth = 0
        """How many overloads of the function are being compiled: one may need another."""
        cache.load_overload, cache.save_overload = self.load, self.save

    def load(self, signature: Any, context: Any) -> Any:
        """What the disk has, perhaps after waiting for another process; None: the caller compiles and saves.

        NotOnDiskError: within `reading_only`.
        """
        found = self._load(signature, context)
        if found is not None:
            return found
        if getattr(_OF_THREAD, "reads_only", False):
            raise NotOnDiskError(self._path.stem)
        self._begin()
        found = self._load(signature, context)
        if found is not None:
            self._end()
        return found

    def save(self, signature: Any, result: Any) -> None:
        """Keep what was compiled, for those that wait, too."""
        try:
            self._save(signature, result)
        finally:
            self._end()

    def _begin(self) -> None:
        self._depth += 1
        if self._lock >= 0:
            return
        with contextlib.suppress(OSError):  # a folder that takes nothing, or a system without locks
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            _take(self._lock, self._longest_wait)

    def _end(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _take(lock: int, longest_wait: float) -> None:
    until = time.monotonic() + longest_wait
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return
            time.sleep(_POLL)
        else:
            return
