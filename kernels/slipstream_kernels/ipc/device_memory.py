"""Memory of a GPU that two processes map: one allocates it, the other opens it by its handle (CUDA IPC).

Its first bytes are a header, which tells a reader by a nonce that it has opened what was meant; see
docs/protocol/cuda_ipc.md. torch is imported where tensors are made, cuda.bindings where a GPU is asked for: neither is
needed otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from slipstream_kernels.ipc.cuda_driver import gpu_uuids

if TYPE_CHECKING:
    import torch

DATA_OFFSET = 4096
"""Where the data begin; the nonce is in front, at 0."""
HANDLE_BYTES = 64


class DeviceMemoryError(OSError):
    """Memory of a GPU cannot be had, or not be shared, or is not what was meant."""


class DeviceBlock(Protocol):
    """A mapping of memory on a device."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def handle(self) -> bytes:
        """By which another process opens it."""
        ...

    @property
    def gpu_uuid(self) -> str:
        """Of the GPU that has it."""
        ...

    def numbers(self) -> torch.Tensor:
        """All data, bfloat16 [(size - DATA_OFFSET) / 2]. Must not be used after `close`."""
        ...

    def write_nonce(self, nonce: bytes) -> None:
        """Clear everything, then write the nonce. Waits until whatever the device was doing is over."""
        ...

    def read_nonce(self, size: int) -> bytes:
        """The first bytes. DeviceMemoryError where they cannot be read."""
        ...

    def close(self) -> None:
        """Let the mapping go, and of the memory's owner the memory. Waits for the device. Idempotent."""
        ...


class DeviceMemory(Protocol):
    """Allocates and opens blocks. DeviceMemoryError where that fails."""

    def allocate(self, size: int) -> DeviceBlock:
        """Memory of its own allocation, on the device of this object."""
        ...

    def open(self, handle: bytes, size: int, gpu_uuid: str) -> DeviceBlock:
        """Map what another process has allocated, on whichever GPU that was.

        The tensors are of this object's device where its kernels reach that memory, else of the GPU that has it.
        """
        ...


class CudaMemory:
    """Memory of the visible GPU of a number, through the CUDA runtime."""

    def __init__(self, index: int = 0) -> None:
        """DeviceMemoryError without the package cuda-bindings, or such a GPU."""
        try:
            from cuda.bindings import runtime
        except ImportError as error:
            raise DeviceMemoryError(f"the package cuda-bindings is missing ({error})") from error
        self._cuda = runtime
        self._uuids = gpu_uuids()
        if index >= len(self._uuids):
            raise DeviceMemoryError(f"there are {len(self._uuids)} GPUs, number {index} is not among them")
        self._index = index

    def allocate(self, size: int) -> CudaBlock:
        with _on(self._cuda, self._index):
            pointer = _call(self._cuda, "cudaMalloc", size)
            try:
                handle = bytes(_call(self._cuda, "cudaIpcGetMemHandle", pointer).reserved)
            except DeviceMemoryError:
                _call(self._cuda, "cudaFree", pointer)
                raise
        return CudaBlock(self._cuda, self._index, self._uuids[self._index], pointer, size, handle, owned=True)

    def open(self, handle: bytes, size: int, gpu_uuid: str) -> CudaBlock:
        if gpu_uuid not in self._uuids:
            raise DeviceMemoryError(f"{gpu_uuid or 'a GPU without a UUID'} is not visible from here")
        if len(handle) != HANDLE_BYTES:
            raise DeviceMemoryError(f"a handle of {len(handle)} bytes, not {HANDLE_BYTES}")
        index = self._reaching(self._uuids.index(gpu_uuid))
        named = self._cuda.cudaIpcMemHandle_t()
        named.reserved = handle
        with _on(self._cuda, index):
            pointer = _call(self._cuda, "cudaIpcOpenMemHandle", named, self._cuda.cudaIpcMemLazyEnablePeerAccess)
        return CudaBlock(self._cuda, index, gpu_uuid, pointer, size, handle, owned=False)

    def _reaching(self, owner: int) -> int:
        """The GPU whose kernels are to read what another one has: this object's, if the two are linked."""
        linked = owner == self._index or _call(self._cuda, "cudaDeviceCanAccessPeer", self._index, owner)
        return self._index if linked else owner


class CudaBlock:
    """Memory of a GPU, this process's own or another's. `index`: the visible GPU whose kernels reach it."""

    def __init__(
        self, cuda: Any, index: int, gpu_uuid: str, pointer: int, size: int, handle: bytes, *, owned: bool
    ) -> None:
        self.size = size
        self.handle = handle
        self.gpu_uuid = gpu_uuid
        self._cuda = cuda
        self._index = index
        self._pointer = pointer
        self._owned = owned
        self._open = True

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """All bytes, for libraries that wrap memory."""
        return {"shape": (self.size,), "typestr": "|u1", "data": (self._pointer, False), "version": 3}

    def numbers(self) -> torch.Tensor:
        return self._bytes()[DATA_OFFSET:].view(_torch().bfloat16)

    def write_nonce(self, nonce: bytes) -> None:
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        with _on(self._cuda, self._index):
            _call(self._cuda, "cudaDeviceSynchronize")
            _call(self._cuda, "cudaMemset", self._pointer, 0, self.size)
            _call(self._cuda, "cudaMemcpy", self._pointer, nonce, len(nonce), kind)
            _call(self._cuda, "cudaDeviceSynchronize")

    def read_nonce(self, size: int) -> bytes:
        try:
            return bytes(self._bytes()[:size].cpu().numpy())
        except RuntimeError as error:
            raise DeviceMemoryError(f"memory of {self.gpu_uuid} cannot be read: {error}") from error

    def close(self) -> None:
        if self._open:
            self._open = False
            with _on(self._cuda, self._index):
                _call(self._cuda, "cudaDeviceSynchronize")
                _call(self._cuda, "cudaFree" if self._owned else "cudaIpcCloseMemHandle", self._pointer)

    def _bytes(self) -> torch.Tensor:
        library = _torch()
        library.cuda.init()
        whole: torch.Tensor = library.as_tensor(self, device=f"cuda:{self._index}")
        return whole


class TensorBlock:
    """A block for one process alone. DeviceMemoryError where there is no memory."""

    handle, gpu_uuid = b"", ""

    def __init__(self, size: int, device: str) -> None:
        library = _torch()
        self.size = size
        try:
            self._data: torch.Tensor = library.empty((size - DATA_OFFSET) // 2, dtype=library.bfloat16, device=device)
        except RuntimeError as error:
            raise DeviceMemoryError(str(error)) from error

    def numbers(self) -> torch.Tensor:
        return self._data

    def write_nonce(self, nonce: bytes) -> None:
        """Nobody can have opened another one."""

    def read_nonce(self, size: int) -> bytes:
        return b""

    def close(self) -> None:
        """It goes with whoever uses it."""


@contextmanager
def _on(cuda: Any, index: int) -> Iterator[None]:
    """Make a GPU the thread's current one, and then again what was."""
    before = _call(cuda, "cudaGetDevice")
    _call(cuda, "cudaSetDevice", index)
    try:
        yield
    finally:
        _call(cuda, "cudaSetDevice", before)


def _call(cuda: Any, name: str, *arguments: Any) -> Any:
    """What a function of the runtime returns beside its status. DeviceMemoryError unless that is success."""
    status, *results = getattr(cuda, name)(*arguments)
    if status != cuda.cudaError_t.cudaSuccess:
        raise DeviceMemoryError(f"{name}: {status.name}")
    return results[0] if results else None


def _torch() -> Any:
    import torch

    return torch
