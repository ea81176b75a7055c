"""Reads what steps compute with, ahead of them: rows are put together and brought to the device by other threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from training.features.source import FeatureSource
from training.fit.batch import Batch, Frame, collate
from training.fit.parallel import World
from training.fit.settings import FitSettings

AHEAD = 3
"""Steps whose rows may wait for their turn, beside those that are being read."""

Job = tuple[Sequence[Sequence[int]], np.ndarray]
"""Rows of a step, by the indices of their sequences, and how many positions count at each unroll step in all of it."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one process computes of a step. counts: int64 [steps], as the job had them; totals: the same in float32, on
    the device as the batches are. tokens: how many there are. copied: when all of it has come to the device.
    """

    batches: list[Batch]
    counts: np.ndarray
    totals: Tensor
    tokens: int
    copied: torch.cuda.Event | None

    def arrive(self) -> None:
        """Have the device's work that is queued from here on wait for the copies, and keep them until it is done."""
        if self.copied is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(self.copied)
            for batch in self.batches:
                for tensor in batch.tensors.values():
                    tensor.record_stream(stream)
            self.totals.record_stream(stream)


class Loader:
    """Reads the rows of steps before they are asked for, in threads and a stream of its own."""

    def __init__(self, source: FeatureSource, settings: FitSettings, world: World, frame: Frame | None = None) -> None:
        """frame: of all batches, where they are to have one."""
        self._source, self._settings, self._world, self._frame = source, settings, world, frame
        self._dtype = compute_dtype(world.device)
        self._stream = torch.cuda.Stream(world.device) if world.device.type == "cuda" else None

    def shares(self, jobs: Iterable[Job]) -> Iterator[Share]:
        """This process's share of each."""
        left, waiting, readers = iter(jobs), deque[Future[Share]](), self._source.readers
        with ThreadPoolExecutor(readers, "features", self._enter) as threads:
            try:
                waiting.extend(threads.submit(self._read, job) for job in islice(left, readers + AHEAD))
                while waiting:
                    share = waiting.popleft().result()
                    waiting.extend(threads.submit(self._read, job) for job in islice(left, 1))
                    yield share
            finally:
                threads.shutdown(cancel_futures=True)

    def _enter(self) -> None:
        """The device is a setting of each thread."""
        if self._stream is not None:
            torch.cuda.set_device(self._world.device)

    def _read(self, job: Job) -> Share:
        rows, counts = job
        mine = rows[self._world.rank :: self._world.size]
        micro = self._settings.micro_rows or max(1, len(mine))
        device, pinned = self._world.device, self._stream is not None
        batches = [self._load(mine[at : at + micro], pinned) for at in range(0, len(mine), micro)]
        totals = torch.from_numpy(counts).float()
        with torch.cuda.stream(self._stream):
            share = Share(
                [batch.to(device, self._dtype) for batch in batches],
                counts,
                (totals.pin_memory() if pinned else totals).to(device, non_blocking=True),
                sum(batch.used for batch in batches),
                None if self._stream is None else torch.cuda.Event(),
            )
            if share.copied is not None:
                share.copied.record()
        return share

    def _load(self, rows: Sequence[Sequence[int]], pinned: bool) -> Batch:
        """Rows of sequences, by their indices in the source."""
        found = iter(self._source.batch([index for row in rows for index in row]))
        sequences = [[next(found) for _ in row] for row in rows]
        return collate(sequences, self._settings.row_length, frame=self._frame, pinned=pinned)


def compute_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on GPUs, float32 elsewhere."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32
