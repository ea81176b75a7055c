"""CUDA graphs of passes, one for each bucket, captured at start-up."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch

from slipstream_kernels.models.gpu.graph.pass_clock import PassClock, PassTimes
from slipstream_kernels.progress import ProgressBar

_log = logging.getLogger(__name__)


class Padded(Protocol):
    """A bucket: what a pass is padded to."""

    @property
    def rows(self) -> int: ...


B = TypeVar("B", bound=Padded)

LATE_GRAPHS = 96
"""Buckets not captured at start-up that get a graph, which passes that keep states do; others go without."""


class GraphRunner(Generic[B]):
    """Runs a bucket's pass: by its graph where there is one, else by queueing its ops one by one.

    Graphs are captured at start-up, and once some are, those of up to LATE_GRAPHS other buckets: by `capture_late`, or
    when they are used for the second time.
    """

    def __init__(
        self, run: Callable[[B], None], meet: Callable[[B], None] | None = None, timed: torch.device | None = None
    ) -> None:
        """`run` queues all of a pass on the current stream. What it reads and writes stays where it is.

        `meet` launches each kernel of a pass at least once, with operands as `run` has them, by default as `run` does.
        Passes on the device `timed` are timed by its clock, if it has one.
        """
        self._run = run
        self._meet = meet or run
        self._graphs: dict[B, torch.cuda.CUDAGraph] = {}
        self._used_once: set[B] = set()
        self._late: list[B] = []
        self._pool: Any = None  # torch gives its handles a private type
        self._clock = None if timed is None else PassClock(timed)
        self.times: PassTimes | None = None
        """Of the pass that was run last; None without a clock."""

    def __len__(self) -> int:
        return len(self._graphs)

    def run(self, bucket: B) -> None:
        """Queue a pass on the current stream."""
        if self._clock is not None:
            self._clock.begin()
        self._queue(bucket)
        if self._clock is not None:
            self.times = self._clock.end()

    def _queue(self, bucket: B) -> None:
        graph = self._graphs.get(bucket)
        if bucket in self._used_once and self.lacks(bucket):
            begun = time.perf_counter()
            graph = self._captured_late(bucket)
            if graph is not None:
                _log.info("passes of %s have a graph, captured in %.1f ms", bucket, 1e3 * (time.perf_counter() - begun))
        if graph is not None:
            graph.replay()
            return
        begun = time.perf_counter()
        self._run(bucket)
        if bucket not in self._used_once and self._pool is not None:
            _log.info(
                "the first pass of %s has no graph: queued in %.1f ms", bucket, 1e3 * (time.perf_counter() - begun)
            )
        self._used_once.add(bucket)

    def lacks(self, bucket: B) -> bool:
        """Whether a bucket has no graph, and may get one."""
        return bucket not in self._graphs and self._pool is not None and len(self._late) < LATE_GRAPHS

    def capture_late(self, bucket: B) -> bool:
        """Capture a bucket, whose plan is on the device, before it is used; whether that succeeded."""
        self._meet(bucket)
        return self._captured_late(bucket) is not None

    def drop_late(self) -> None:
        """Forget the graphs that were not captured at start-up. None of them may be running."""
        for bucket in self._late:
            del self._graphs[bucket]
        self._late.clear()
        self._used_once.clear()

    def meet(self, buckets: Iterable[B]) -> None:
        """Launch each kernel of the buckets' passes, so that all are compiled side by side by `compiling_ahead`."""
        for bucket in buckets:
            self._meet(bucket)

    def capture(self, buckets: Sequence[B], prepare: Callable[[B], None], *, progress: bool) -> None:
        """Launch each bucket's kernels once, then capture its pass; not on the default stream.

        `prepare` puts a plan of nothing but padding on the device. Graphs share one pool of memory: the largest bucket
        comes first. Kernels that `meet` has not compiled before are compiled here, one after the other.
        """
        self._pool = torch.cuda.graph_pool_handle()
        gc.collect()
        title = "capturing CUDA graphs"
        with _no_collection(), ProgressBar(buckets, desc=title, unit="graph", disable=not progress) as bar:
            for bucket in bar:
                bar.set_postfix_str(f"{bucket.rows} rows")
                prepare(bucket)
                self._meet(bucket)
                torch.cuda.current_stream().synchronize()
                self._capture(bucket)

    def _captured_late(self, bucket: B) -> torch.cuda.CUDAGraph | None:
        """Where a capture fails, as for want of memory, this bucket and others like it go on without."""
        try:
            with _no_collection():
                graph = self._capture(bucket)
            self._late.append(bucket)
            return graph
        except Exception:  # noqa: BLE001 - a pass runs without a graph too
            _log.exception("no graph could be captured for passes of %s", bucket)
            self._pool = None
            return None

    def _capture(self, bucket: B) -> torch.cuda.CUDAGraph:
        """Record a pass all of whose kernels have been launched before: none is compiled or loaded meanwhile."""
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as those that watch a group of ranks, may go on calling CUDA.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            self._run(bucket)
        finally:
            graph.capture_end()
        self._graphs[bucket] = graph
        return graph


@contextmanager
def _no_collection() -> Iterator[None]:
    """Tensors that are freed while a graph is captured would break it. To collect first may take longer than that."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
