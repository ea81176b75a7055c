"""The rings of the GPU's memory that drafters map, one an attachment, and when another drafter may get one."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass

from slipstream.rpc.errors import ResourceExhaustedError
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

MAX_RINGS = 8
"""Rings that exist at once, those kept for drafters that are detached but may live included."""
STEPS = 3
"""Steps whose states a ring holds: one that the drafter reads, one under way, and one launched behind it."""
MAX_BYTES = 1 << 28
_ROUNDED = 1 << 21
"""What CUDA maps as a whole: of a smaller part, its surroundings could be read by whoever opens it."""


@dataclass(slots=True, eq=False)
class _Kept:
    """A block, the process that has mapped it, and the ring that it serves as, or did last."""

    block: DeviceBlock
    process: DraftProcess
    ring: DeviceRing

    @property
    def idle(self) -> bool:
        """Whether its attachment is over, and no step may still write to it."""
        return self.ring.closed and self.ring.has_no_writers


class DeviceRingPool:
    """Makes rings. One that is over is freed, or serves another process, once its own has gone; not while it may live.

    For any thread. Waits for the device.
    """

    def __init__(self, memory: DeviceMemory, *, max_step_rows: int, hidden_size: int) -> None:
        """`max_step_rows` is how many rows a step has at most."""
        self._memory = memory
        self._step_rows = max_step_rows
        self._hidden_size = hidden_size
        self._kept: list[_Kept] = []
        self._lock = threading.Lock()

    def take(self, process_id: int, boundaries: int) -> DeviceRing:
        """A ring for a drafter that wants states at so many boundaries at most.

        FailedPreconditionError where its process cannot be watched, ResourceExhaustedError where there is no memory.
        """
        process = DraftProcess(process_id)
        size = self._size(boundaries)
        with self._lock:
            try:
                kept = self._found(process, size) or self._made(process, size)
                nonce = secrets.token_bytes(NONCE_BYTES)
                kept.block.write_nonce(nonce)
            except DeviceMemoryError as error:
                raise ResourceExhaustedError(f"no ring of {size} bytes on the device: {error}") from error
            kept.process, kept.ring = process, DeviceRing(kept.block, nonce)
            return kept.ring

    def _found(self, process: DraftProcess, size: int) -> _Kept | None:
        """A block that this process had before, or one whose process has gone."""
        for kept in self._kept:
            if kept.block.size == size and kept.idle and (kept.process == process or kept.process.gone):
                return kept
        return None

    def _made(self, process: DraftProcess, size: int) -> _Kept:
        """A new block, in the place of a free one where there are as many as may be."""
        if len(self._kept) >= MAX_RINGS:
            free = next((kept for kept in self._kept if kept.idle and kept.process.gone), None)
            if free is None:
                raise DeviceMemoryError(f"{MAX_RINGS} rings are mapped by processes that live")
            self._kept.remove(free)
            free.block.close()
        block = self._memory.allocate(size)
        nobodys = DeviceRing(block, b"")
        nobodys.closed = True
        self._kept.append(_Kept(block, process, nobodys))
        return self._kept[-1]

    def _size(self, boundaries: int) -> int:
        return _ring_size(self._step_rows, boundaries, self._hidden_size)


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
