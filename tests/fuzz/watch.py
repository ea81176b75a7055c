"""What an input may do to the process: errors that nobody awaits, time, memory, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fuzz.target import BrokenError

MOST_SECONDS = 2.0
"""Processor time of one input, over all threads."""
MOST_BYTES = 256 << 20
"""By which one input may raise the most memory that the process has ever held."""
MOST_GROWTH = 96 << 20
"""By which all inputs after the first ones may raise the memory that is held."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Watch:
    """Belongs to the thread that feeds inputs. As a context manager it listens for errors that reach nobody."""

    def __init__(self) -> None:
        self._errors: list[str] = []
        self._handler = _Tracebacks(self._errors)
        self._hooks = sys.unraisablehook, threading.excepthook
        self._begun = self._peak = 0.0
        self.slowest = 0.0
        """Processor seconds of the slowest input so far."""
        self._held: tuple[int, int, int] | None = None

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self._handler)
        sys.unraisablehook = lambda args: self._note("unraisable", args.exc_value)
        threading.excepthook = lambda args: self._note("thread", args.exc_value)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger().removeHandler(self._handler)
        sys.unraisablehook, threading.excepthook = self._hooks

    def begin(self) -> None:
        """An input comes."""
        self._peak = _peak()
        self._begun = time.process_time()

    def slow(self) -> bool:
        """Whether it has taken too long already."""
        return time.process_time() - self._begun > MOST_SECONDS

    def end(self) -> None:
        """It has been checked: BrokenError for what it did besides."""
        seconds = time.process_time() - self._begun
        self.slowest = max(self.slowest, seconds)
        grown = _peak() - self._peak
        if self._errors:
            errors, self._errors[:] = list(self._errors), []
            raise BrokenError("errors that reached nobody:\n" + "\n".join(errors))
        if seconds > MOST_SECONDS:
            raise BrokenError(f"{seconds:.1f} s of processor time")
        if grown > MOST_BYTES:
            raise BrokenError(f"{grown / 2**20:.0f} MiB more than ever")

    def forget(self) -> None:
        """Whatever was heard is of an input that is a finding already."""
        self._errors[:] = []

    def note_holdings(self) -> None:
        """What the process holds once it has done everything for the first time."""
        self._held = _holdings()

    def check_holdings(self) -> None:
        """BrokenError if it holds more descriptors or threads than that, or much more memory."""
        assert self._held is not None
        descriptors, threads, memory = (now - before for now, before in zip(_holdings(), self._held, strict=True))
        if descriptors > 0 or threads > 0:
            raise BrokenError(f"{descriptors} descriptors and {threads} threads are left")
        if memory > MOST_GROWTH:
            raise BrokenError(f"{memory / 2**20:.0f} MiB of memory are left")

    def _note(self, where: str, error: BaseException | None) -> None:
        self._errors.append(f"{where}: {error!r}")


class _Tracebacks(logging.Handler):
    """Collects what is logged with a traceback, and what asyncio says of errors in callbacks."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._found = errors

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.name == "asyncio":
            self._found.append(logging.Formatter("%(name)s: %(message)s").format(record))


def all_tasks(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    """Tasks of a loop that are not done."""
    return [task for task in asyncio.all_tasks(loop) if not task.done()]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _holdings() -> tuple[int, int, int]:
    """Descriptors, threads and bytes of resident memory."""
    gc.collect()
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    threads = len(list(Path("/proc/self/task").iterdir()))
    return descriptors, threads, int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
