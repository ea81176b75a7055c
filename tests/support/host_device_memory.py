"""Memory of the host in the place of a GPU's: shared between processes as that is, so that all but CUDA is real."""

from __future__ import annotations

import torch

from slipstream_kernels.ipc.device_memory import DATA_OFFSET, DeviceMemoryError
from slipstream_kernels.ipc.segment import Segment, SegmentError

GPU_UUID = "GPU-of-the-host"


class HostMemory:
    """A `DeviceMemory` whose handles are paths. `opens` and `allocates` tell whether it can."""

    def __init__(self, *, opens: bool = True, allocates: bool = True) -> None:
        self.opens, self.allocates = opens, allocates
        self.blocks: list[HostBlock] = []

    def allocate(self, size: int) -> HostBlock:
        if not self.allocates:
            raise DeviceMemoryError("cudaMalloc: cudaErrorMemoryAllocation")
        segment = Segment.create(size)
        self.blocks.append(HostBlock(segment, segment.path.encode()))
        return self.blocks[-1]

    def open(self, handle: bytes, size: int, gpu_uuid: str) -> HostBlock:
        if not self.opens or gpu_uuid != GPU_UUID:
            raise DeviceMemoryError(f"{gpu_uuid} is not visible from here")
        try:
            return HostBlock(Segment.open(handle.decode(), size), handle)
        except SegmentError as error:
            raise DeviceMemoryError(str(error)) from error


class HostBlock:
    """A `DeviceBlock`."""

    gpu_uuid = GPU_UUID

    def __init__(self, segment: Segment, handle: bytes) -> None:
        self.handle = handle
        self.size = len(segment.memory)
        self.closed = False
        self._segment = segment

    def numbers(self) -> torch.Tensor:
        return torch.frombuffer(self._segment.memory, dtype=torch.bfloat16, offset=DATA_OFFSET)

    def write_nonce(self, nonce: bytes) -> None:
        self._segment.memory[:] = bytes(self.size)
        self._segment.memory[: len(nonce)] = nonce

    def read_nonce(self, size: int) -> bytes:
        return bytes(self._segment.memory[:size])

    def close(self) -> None:
        self.closed = True
