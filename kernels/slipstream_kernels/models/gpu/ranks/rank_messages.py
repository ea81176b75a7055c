"""What rank 0 says to the other ranks of a shared model, in the host's memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from slipstream_kernels.models.rank_error import RankError

FIRST_BLOCK = 16384
"""Bytes of a message's first block, length included: a decode step's plan fits."""
_LENGTH = 8
_EVER = timedelta(days=3650)


class RankMessages(Protocol):
    """Used by one thread of each rank; every rank makes the same calls in the same order."""

    def broadcast(self, message: bytes | None) -> bytes:
        """Rank 0's message, on every rank; the others pass None and wait for as long as rank 0 lives.

        Host memory; no device work is waited for. Raises RankError.
        """

    def wait_for_all(self) -> None:
        """Return when every rank has called this, however long they take. Raises RankError."""


class GlooMessages:
    """Messages by gloo, between the ranks of the default process group, each of which makes one at the same place."""

    def __init__(self, rank: int, size: int) -> None:
        self._name = f"rank {rank} of {size}"
        self._group = dist.new_group(backend="gloo", timeout=_EVER)
        self._first = torch.zeros(FIRST_BLOCK, dtype=torch.uint8)

    def broadcast(self, message: bytes | None) -> bytes:
        with lost_rank(f"{self._name} lost rank 0 or could not reach another"):
            return self._broadcast(message)

    def wait_for_all(self) -> None:
        with lost_rank(f"{self._name} lost another rank"):
            dist.barrier(group=self._group)

    def _broadcast(self, message: bytes | None) -> bytes:
        """One block that starts with the length, then, where the message is longer, the rest."""
        space = FIRST_BLOCK - _LENGTH
        if message is not None:
            _fill(self._first, len(message).to_bytes(_LENGTH, "little") + message[:space])
        dist.broadcast(self._first, 0, group=self._group)
        head = self._first.numpy().tobytes()
        length = int.from_bytes(head[:_LENGTH], "little")
        if length <= space:
            return head[_LENGTH : _LENGTH + length]
        rest = torch.empty(length - space, dtype=torch.uint8)
        if message is not None:
            _fill(rest, message[space:])
        dist.broadcast(rest, 0, group=self._group)
        return head[_LENGTH:] + rest.numpy().tobytes()


def _fill(block: torch.Tensor, content: bytes) -> None:
    block[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)


@contextmanager
def lost_rank(what: str) -> Iterator[None]:
    """Errors of the process group as RankError, which says `what` could not be done."""
    try:
        yield
    except RuntimeError as error:
        raise RankError(f"{what}: {error}") from error
