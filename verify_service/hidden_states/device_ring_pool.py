"""Memory of the GPU that drafters map, a ring and a queue an attachment, and when another drafter may get it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slipstream.rpc.errors import ResourceExhaustedError
from slipstream_kernels.device_queue import queue_bytes
from slipstream_kernels.ipc.byte_ring import NONCE_BYTES
from slipstream_kernels.ipc.device_memory import (
    DATA_OFFSET,
    DeviceBlock,
    DeviceMemory,
    DeviceMemoryError,
    TensorBlock,
)
from verify_service.hidden_states.device_ring import DeviceRing
from verify_service.hidden_states.process_watch import DraftProcess

if TYPE_CHECKING:
    import torch

MAX_RINGS = 8
"""Rings that exist at once, and queues, those kept for drafters that are detached but may live included."""
STEPS = 3
"""Steps whose states a ring holds: one that the drafter reads, one under way, and one launched behind it."""
MAX_BYTES = 1 << 28
_ROUNDED = 1 << 21
"""What CUDA maps as a whole: of a smaller part, its surroundings could be read by whoever opens it."""


class _User(Protocol):
    @property
    def idle(self) -> bool: ...


@dataclass(slots=True, eq=False)
class _Kept:
    """A block, the process that has mapped it, and what it serves as, or did last; None where nothing uses it."""

    block: DeviceBlock
    process: DraftProcess
    user: _User | None = None

    @property
    def idle(self) -> bool:
        """Whether its attachment is over, and no step may still use it."""
        return self.user is None or self.user.idle


@dataclass(slots=True, eq=False)
class QueueMemory:
    """A block in which passes and rounds wait for one another, for passes of `rows` requests at most."""

    block: DeviceBlock
    nonce: bytes
    rows: int
    closed: bool = False
    """Whether the attachment has ended."""
    used: torch.cuda.Event | None = None
    """Comes once this process does not use the block any more."""

    @property
    def idle(self) -> bool:
        return self.closed and (self.used is None or self.used.query())


class DeviceRingPool:
    """Makes rings and queues.

    One that is over is freed, or serves another process, once its own has gone; not while it may live.

    For any thread. Waits for the device.
    """

    def __init__(self, memory: DeviceMemory, *, max_step_rows: int, hidden_size: int, mps: bool = False) -> None:
        """`max_step_rows` is how many rows a step has at most, `mps` whether this process is a client of MPS there."""
        self.mps = mps
        self._memory = memory
        self._step_rows = max_step_rows
        self._hidden_size = hidden_size
        self._rings: list[_Kept] = []
        self._queues: list[_Kept] = []
        self._lock = threading.Lock()

    def take(self, process_id: int, boundaries: int) -> DeviceRing:
        """A ring for a drafter that wants states at so many boundaries at most.

        FailedPreconditionError where its process cannot be watched, ResourceExhaustedError where there is no memory.
        """
        with self._lock:
            kept, nonce = self._taken("ring", self._rings, process_id, self._size(boundaries))
            kept.user = ring = DeviceRing(kept.block, nonce)
            return ring

    def take_queue(self, process_id: int, rows: int) -> QueueMemory:
        """Memory for a queue of passes of `rows` requests. Raises as `take`."""
        needed = DATA_OFFSET + queue_bytes(rows)
        with self._lock:
            kept, nonce = self._taken("queue", self._queues, process_id, -(-needed // _ROUNDED) * _ROUNDED)
            kept.user = queue = QueueMemory(kept.block, nonce, rows)
            return queue

    def _taken(self, what: str, blocks: list[_Kept], process_id: int, size: int) -> tuple[_Kept, bytes]:
        """A block that nobody uses, for this process, and the nonce that is in it."""
        process = DraftProcess(process_id)
        try:
            kept = _found(blocks, process, size) or self._made(what, blocks, process, size)
            nonce = secrets.token_bytes(NONCE_BYTES)
            kept.block.write_nonce(nonce)
        except DeviceMemoryError as error:
            raise ResourceExhaustedError(f"no {what} of {size} bytes on the device: {error}") from error
        kept.process = process
        return kept, nonce

    def _made(self, what: str, blocks: list[_Kept], process: DraftProcess, size: int) -> _Kept:
        """A new block, in the place of a free one where there are as many as may be."""
        if len(blocks) >= MAX_RINGS:
            free = next((kept for kept in blocks if kept.idle and kept.process.gone), None)
            if free is None:
                raise DeviceMemoryError(f"{MAX_RINGS} {what}s are mapped by processes that live")
            blocks.remove(free)
            free.block.close()
        blocks.append(_Kept(self._memory.allocate(size), process))
        return blocks[-1]

    def _size(self, boundaries: int) -> int:
        return _ring_size(self._step_rows, boundaries, self._hidden_size)


def _found(blocks: Sequence[_Kept], process: DraftProcess, size: int) -> _Kept | None:
    """A block that this process had before, or one whose process has gone."""
    for kept in blocks:
        if kept.block.size == size and kept.idle and (kept.process == process or kept.process.gone):
            return kept
    return None


def ring_here(device: str, boundaries: int, *, max_step_rows: int, hidden_size: int) -> DeviceRing:
    """A ring for proposers of this process. ResourceExhaustedError where there is no memory."""
    size = _ring_size(max_step_rows, boundaries, hidden_size)
    try:
        return DeviceRing(TensorBlock(size, device), b"")
    except DeviceMemoryError as error:
        raise ResourceExhaustedError(f"no ring of {size} bytes on {device}: {error}") from error


def _ring_size(max_step_rows: int, boundaries: int, hidden_size: int) -> int:
    needed = DATA_OFFSET + STEPS * max_step_rows * boundaries * hidden_size * 2
    return min(-(-needed // _ROUNDED) * _ROUNDED, MAX_BYTES)
