"""The processes that share one model by tensor parallelism, and what they say to one another."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, though not in its __all__

from slipstream_kernels.models.gpu.ranks.rank_messages import GlooMessages, RankMessages, lost_rank

_LOOPBACK = "127.0.0.1"
_TIMEOUT = 300.0

# Named anew in torch 2.13, where the former name warns.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class RankGroup(RankMessages, Protocol):
    """Rank `rank` of `size`. Every rank makes the same calls in the same order."""

    @property
    def size(self) -> int: ...

    @property
    def rank(self) -> int: ...

    def all_gather(self, out: torch.Tensor, part: torch.Tensor) -> None:
        """Write each rank's contiguous `part` [...] to out[rank]: `out` [size, ...], contiguous, of the same dtype.

        On the current stream; may be captured in a CUDA graph. Raises RankError.
        """

    @property
    def apart(self) -> RankMessages:
        """Messages of another thread of each rank, which wait for none of this group."""

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
    with lost_rank(f"rank 0 does not answer at port {port}"):
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
        with lost_rank(f"rank {rank} of {size} could not join the others"):
            dist.init_process_group(
                "nccl" if self._cuda else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=limit,
                device_id=device if self._cuda else None,
            )
            self._messages, self._apart = (GlooMessages(rank, size) for _ in range(2))

    @property
    def size(self) -> int:
        return self._size

    @property
    def rank(self) -> int:
        return self._rank

    def all_gather(self, out: torch.Tensor, part: torch.Tensor) -> None:
        with lost_rank(f"rank {self.rank} of {self.size} could not gather from the others"):
            _gather(out.flatten(0, 1), part)

    @property
    def apart(self) -> RankMessages:
        return self._apart

    def broadcast(self, message: bytes | None) -> bytes:
        return self._messages.broadcast(message)

    def wait_for_all(self) -> None:
        self._messages.wait_for_all()

    def close(self) -> None:
        if not self._cuda:  # NCCL would wait for CUDA graphs that hold its kernels; it ends with the process
            dist.destroy_process_group()
