"""Copies from pageable memory of the host to a device, through pinned memory that all of torch's threads fill.

The driver's own way is one thread that fills memory of the driver's, a third of what the bus takes.
"""

from __future__ import annotations

import torch

STAGE_BYTES = 64 << 20
"""Of each of the two buffers: one is filled while the device reads the other."""


class StagedCopies:
    """Queued on the current stream, one after the other; for one thread."""

    def __init__(self, device: torch.device, stage_bytes: int = STAGE_BYTES) -> None:
        """The buffers are pinned where `device` is one of CUDA; what is copied in them comes to any device."""
        cuda = device.type == "cuda"
        self._buffers = [torch.empty(stage_bytes, dtype=torch.uint8, pin_memory=cuda) for _ in range(2)]
        self._read = [torch.cuda.Event() if cuda else None for _ in range(2)]
        """Come when a buffer has been read."""
        self._next = 0

    def copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """target = source, of equal shapes; what does not come from the host, or has another type, as torch does it."""
        stage_bytes = len(self._buffers[0])
        row_bytes = source[0].nbytes if source.ndim and len(source) else 0
        if source.is_cuda or source.dtype != target.dtype or not 0 < row_bytes <= stage_bytes:
            target.copy_(source)
            return
        rows = stage_bytes // row_bytes
        for part, place in zip(source.split(rows), target.split(rows), strict=True):
            buffer, read = self._buffers[self._next], self._read[self._next]
            self._next = 1 - self._next
            if read is not None:
                read.synchronize()
            staged = buffer[: part.nbytes].view(part.dtype).view(part.shape)
            staged.copy_(part)
            place.copy_(staged, non_blocking=True)
            if read is not None:
                read.record()
