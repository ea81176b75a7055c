"""The processes that share one model by tensor parallelism, and what they say to one another."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, though not in its __all__

from slipstream_kernels.models.rank_error import RankError

FIRST_BLOCK = 16384
"""Bytes of a message's first block, length included: a decode step's plan fits."""
_LOOPBACK = "127.0.0.1"
_LENGTH = 8
_EVER = timedelta(days=3650)
_TIMEOUT = 300.0

# Named anew in torch 2.13, where the former name warns.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class RankGroup(Protocol):
    """Rank `rank` of `size`. Every rank makes the same calls in the same order."""

    @property
    def size(self) -> int: ...

    @property
    def rank(self) -> int: ...

    def all_gather(self, out: torch.Tensor, part: torch.Tensor) -> None:
        """Write each rank's contiguous `part` [...] to out[rank]: `out` [size, ...], contiguous, of the same dtype.

        On the current stream; may be captured in a CUDA graph. Raises RankError.
        """

    def broadcast(self, message: bytes | None) -> bytes:
        """Rank 0's message, on every rank; the others pass None and wait for as long as rank 0 lives.

        Host memory; no device work is waited for. Raises RankError.
        """

    def wait_for_all(self) -> None:
        """Return when every rank has called this, however long they take. Raises RankError."""

    def close(self) -> None:
        """Leave the group. The others' next call raises RankError."""


def open_rendezvous(size: int, timeout: float = _TIMEOUT) -> TCPStore:
    """Where `size` ranks of this host meet, opened by rank 0 at a free `port` of the loopback address."""
    with socket.socket() as listener:
        listener.bind((_LOOPBACK, 0))
        listener.listen()
        port = listener.getsockname()[1]
        limit = timedelta(seconds=timeout)
        return TCPStore(
            _LOOPBACK, port, size, True, timeout=limit, wait_for_workers=False, master_listen_fd=listener.detach()
        )


def join_rendezvous(port: int, size: int, timeout: float = _TIMEOUT) -> TCPStore:
    """What rank 0 has opened at `port`. Raises RankError where it does not answer within `timeout` seconds."""
    with _lost(f"rank 0 does not answer at port {port}"):
        return TCPStore(_LOOPBACK, port, size, timeout=timedelta(seconds=timeout), wait_for_workers=False)


class DistributedRankGroup:
    """Ranks of one host by torch.distributed: NCCL between GPUs, gloo between CPUs; messages always by gloo."""

    def __init__(
        self, device: torch.device, store: TCPStore, *, rank: int, size: int, timeout: float = _TIMEOUT
    ) -> None:
        """Meet the other ranks at `store`. Raises RankError where not all come within `timeout` seconds.

        A later call that takes longer fails too, but for waits that may be long: for messages, and for all.
        """
        self._rank, self._size = rank, size
        self._cuda = device.type == "cuda"
        # Buffers that graphs name would be opened in the other processes, which then hold what this one frees.
        os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
        limit = timedelta(seconds=timeout)
        with _lost(f"rank {rank} of {size} could not join the others"):
            dist.init_process_group(
                "nccl" if self._cuda else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=limit,
                device_id=device if self._cuda else None,
            )
            self._messages = dist.new_group(backend="gloo", timeout=_EVER)
        self._first = torch.zeros(FIRST_BLOCK, dtype=torch.uint8)

    @property
    def size(self) -> int:
        return self._size

    @property
    def rank(self) -> int:
        return self._rank

    def all_gather(self, out: torch.Tensor, part: torch.Tensor) -> None:
        with _lost(f"rank {self.rank} of {self.size} could not gather from the others"):
            _gather(out.flatten(0, 1), part)

    def broadcast(self, message: bytes | None) -> bytes:
        with _lost(f"rank {self.rank} of {self.size} lost rank 0 or could not reach another"):
            return self._broadcast(message)

    def wait_for_all(self) -> None:
        with _lost(f"rank {self.rank} of {self.size} lost another rank"):
            dist.barrier(group=self._messages)

    def close(self) -> None:
        if not self._cuda:  # NCCL would wait for CUDA graphs that hold its kernels; it ends with the process
            dist.destroy_process_group()

    def _broadcast(self, message: bytes | None) -> bytes:
        """One block that starts with the length, then, where the message is longer, the rest."""
        space = FIRST_BLOCK - _LENGTH
        if message is not None:
            _fill(self._first, len(message).to_bytes(_LENGTH, "little") + message[:space])
        dist.broadcast(self._first, 0, group=self._messages)
        head = self._first.numpy().tobytes()
        length = int.from_bytes(head[:_LENGTH], "little")
        if length <= space:
            return head[_LENGTH : _LENGTH + length]
        rest = torch.empty(length - space, dtype=torch.uint8)
        if message is not None:
            _fill(rest, message[space:])
        dist.broadcast(rest, 0, group=self._messages)
        return head[_LENGTH:] + rest.numpy().tobytes()


def _fill(block: torch.Tensor, content: bytes) -> None:
    block[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)


@contextmanager
def _lost(what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RankError(f"{what}: {error}") from error
