"""Reads a device's memory as the passes of a draft model do: products of matrices, each with the one before."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from time import perf_counter, sleep

import torch
from torch.nn.functional import linear

from slipstream_kernels.token_tree import MAX_ROWS

WIDTH = 4096
"""Columns of the matrices on a GPU."""
_WARM_UPS = 3


class DeviceReader:
    """So many passes over `size` bytes of bfloat16 matrices in all; no two passes read the same bytes.

    The first pass begins with states that `take` got last, of `columns` numbers a row, if that is not 0. On a GPU the
    passes are one CUDA graph. Used by one thread.
    """

    def __init__(self, size: int, passes: int, device: str, columns: int = 0) -> None:
        self.passes = passes
        self._device = torch.device(device)
        self._cuda = self._device.type == "cuda"
        width = WIDTH if self._cuda else 64
        rows = max(width, size // passes // (2 * width))
        with self._current():
            self._matrices = [
                torch.empty(rows, width, dtype=torch.bfloat16, device=self._device).normal_(0.0, width**-0.5)
                for _ in range(passes)
            ]
            self._input = torch.ones(1, width, dtype=torch.bfloat16, device=self._device)
            self._states = torch.zeros(MAX_ROWS, columns, dtype=torch.bfloat16, device=self._device)
            self._on_host = torch.zeros(MAX_ROWS, columns, dtype=torch.bfloat16, pin_memory=self._cuda)
            self._result = torch.zeros(1, dtype=torch.int64, device=self._device)
            self._answer = torch.zeros(1, dtype=torch.int64, pin_memory=self._cuda)
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._cuda else []
            self._graphs = {count: self._captured(count) for count in {1, passes}} if self._cuda else {}

    @property
    def nbytes(self) -> int:
        """Bytes that all passes read."""
        return sum(matrix.nbytes for matrix in self._matrices)

    def take(self, rows: torch.Tensor) -> None:
        """States that came, on the CPU or the device, bfloat16 [rows, columns]; of many the newest ones are kept."""
        rows = rows[-MAX_ROWS:]
        with self._current():
            if rows.device.type == "cpu" and self._cuda:
                self._on_host[: len(rows)].copy_(rows)
                rows = self._on_host[: len(rows)]
            self._states[: len(rows)].copy_(rows, non_blocking=True)

    def read(self, passes: int) -> float:
        """Make 1 pass or all of them and wait for what comes out; seconds on the GPU, 0 on the CPU."""
        self.begin(passes)
        return self.finish()

    def begin(self, passes: int) -> None:
        """Queue 1 pass or all of them; on the CPU they are made."""
        if not self._cuda:
            self._run(passes)
            return
        begun, ended = self._events
        with self._current():
            begun.record()
            self._graphs[passes].replay()
            self._answer.copy_(self._result, non_blocking=True)
            ended.record()

    def wait(self, seconds: float) -> bool:
        """Whether what was begun is done, after so many seconds at most."""
        until = perf_counter() + seconds
        while self._cuda and not self._events[1].query():
            if perf_counter() >= until:
                return False
            sleep(0)
        return True

    def finish(self) -> float:
        """Wait for it; seconds on the GPU."""
        if not self._cuda:
            return 0.0
        begun, ended = self._events
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1e3

    def _run(self, passes: int) -> None:
        state = self._input
        if self._states.shape[1]:
            state = state + self._states[:1].mean()
        result = state
        for matrix in self._matrices[:passes]:
            result = linear(state, matrix)
            state = result[:, : state.shape[1]]
        self._result.copy_(result.argmax(1))

    def _captured(self, passes: int) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._run(passes)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # A verify service may work in this process.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self._run(passes)
        return graph

    def _current(self) -> AbstractContextManager[object]:
        """The device's streams and events are this one's."""
        return torch.cuda.device(self._device) if self._cuda else nullcontext()
