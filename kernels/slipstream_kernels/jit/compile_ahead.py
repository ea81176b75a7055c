"""Triton kernels compiled side by side, before any of them runs.

A kernel's first launch compiles it, and waits for that. A start meets some fifty kernels one after the other, though
LLVM and `ptxas`, which take most of the time, would work on as many at a time as there are cores. So would the C
compiler, by which some versions of Triton make what launches a kernel, for each signature.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton
from triton.runtime import driver, jit

_log = logging.getLogger(__name__)

MOST_THREADS = 16
"""Beyond so many the interpreter's lock, under which kernels' sources are read, is what they wait for."""
_ONE_AT_A_TIME = threading.Lock()
_OF_THREAD = threading.local()
_TOLD_SECONDS = 1.0
"""What takes longer is told."""


class _WithLaunchers(triton.AsyncCompileMode):
    """Also makes what launches a kernel, which is on the disk from then on, where it is compiled."""

    def submit(self, key: Any, compile_fn: Callable[[], Any], finalize_fn: Callable[[Any], None]) -> Any:
        """See Triton's, which has the kernel compiled by another thread."""

        def compiled() -> Any:
            kernel = compile_fn()
            driver.active.launcher_cls(kernel.src, kernel.metadata)
            return kernel

        return super().submit(key, compiled, finalize_fn)


@contextmanager
def compiling_ahead(threads: int | None = None) -> Iterator[None]:
    """Within, the calling thread's launches of kernels run nothing: each is compiled on one of `threads` threads, or
    read from the disk. All of them are there at the end, which raises what the first failure raised.

    threads: by default one for each core that the process may use, `MOST_THREADS` at most. Other threads' launches are
    as ever; one that would do the same waits.
    """
    with _ONE_AT_A_TIME:
        yield from _compiling(threads or min(MOST_THREADS, len(os.sched_getaffinity(0))))


def is_compiling_ahead() -> bool:
    """Whether the calling thread's launches run nothing."""
    return getattr(_OF_THREAD, "compiles", False)


def _compiling(threads: int) -> Iterator[None]:
    begun, owner, launch = time.perf_counter(), threading.get_ident(), jit.JITFunction.run

    def compiled(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if threading.get_ident() != owner:
            return launch(self, *args, grid=grid, warmup=warmup, **options)
        kernel = launch(self, *args, grid=grid, warmup=True, **options)
        future = getattr(kernel, "future", None)
        if future is not None and future.done():
            kernel.result()  # from now on Triton finds it without asking what it is made of
        return kernel

    with ThreadPoolExecutor(threads, "compile") as pool:
        mode = _WithLaunchers(pool)
        with mode:
            jit.JITFunction.run = compiled
            _OF_THREAD.compiles = True
            try:
                yield
            finally:
                _OF_THREAD.compiles = False
                jit.JITFunction.run = launch
            kernels = len(mode.raw_futures)
    if (seconds := time.perf_counter() - begun) > _TOLD_SECONDS:
        _log.info("%d kernels compiled or read in %.1f s", kernels, seconds)
