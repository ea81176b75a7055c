"""Ranks of tensor parallelism that are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

_SECONDS = 120


class _Place:
    """Where ranks leave what they have for the others."""

    def __init__(self, size: int) -> None:
        self.left: list[Any] = [None] * size
        self.barrier = threading.Barrier(size, timeout=_SECONDS)

    def exchange(self, rank: int, mine: Any, take: Callable[[list[Any]], Any]) -> Any:
        """What `take` makes of all ranks' things, which stay as they are until all have taken."""
        self.left[rank] = mine
        self.barrier.wait()
        taken = take(self.left)
        self.barrier.wait()
        return taken


class _Messages:
    def __init__(self, place: _Place, rank: int) -> None:
        self._place, self._rank = place, rank

    def broadcast(self, message: bytes | None) -> bytes:
        content: bytes = self._place.exchange(self._rank, message, lambda left: left[0])
        return content

    def wait_for_all(self) -> None:
        self._place.exchange(self._rank, None, lambda left: None)


class ThreadGroup(_Messages):
    """As `RankGroup`. Messages, too, are waited for no longer than a barrier's time."""

    def __init__(self, rank: int, size: int, tensors: _Place, messages: _Place, apart: _Place) -> None:
        super().__init__(messages, rank)
        self.rank, self.size = rank, size
        self.apart = _Messages(apart, rank)
        self._tensors = tensors

    def all_gather(self, out: torch.Tensor, part: torch.Tensor) -> None:
        assert out.shape == (self.size, *part.shape) and out.dtype == part.dtype and out.is_contiguous()
        self._tensors.exchange(self.rank, part, lambda left: out.copy_(torch.stack(left)))

    def close(self) -> None:
        pass


def thread_groups(size: int) -> list[ThreadGroup]:
    """The groups of all ranks."""
    places = [_Place(size) for _ in range(3)]
    return [ThreadGroup(rank, size, *places) for rank in range(size)]


def on_ranks(size: int, run: Callable[[ThreadGroup], Any]) -> list[Any]:
    """What `run` returns on each rank."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, thread_groups(size)))
