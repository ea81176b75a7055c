"""Runs what recurses as deep as a client's text says on a stack that such a text cannot exhaust."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")

STACK_BYTES = 512 << 20
"""Of address space; memory is taken as deep as the stack gets. A compiler needs some 10 KB for each definition that
refers to another, and dies with its process where the stack ends."""
_NICENESS = 10
THREAD_NAME = "grammar"
"""What names of threads begin with that work on grammars, at whose end the process may come."""
_starting = threading.Lock()


def run_deep(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises, computed by a thread of low priority and deep stack."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        be_nice()
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name=THREAD_NAME, daemon=True)
    with _starting:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def end_process(status: int) -> NoReturn:
    """End the process as `sys.exit` does, which it may not while a thread works on a grammar: then without finalising.

    A compiler that comes back into an interpreter that is gone dies of a segmentation fault. What was registered to be
    called at the end is called in both cases.
    """
    if any(thread.name.startswith(THREAD_NAME) for thread in threading.enumerate()):
        atexit._run_exitfuncs()  # noqa: SLF001 - nothing public calls them
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def be_nice() -> None:
    """Let other threads go before the calling one, where the system has priorities of threads."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
