"""Rows of a pass that are sampled under masks, behind the pass or once its results are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import Int32

Words = npt.NDArray[np.uint32]
_ALIGNMENT = 16
"""Words to which every array is aligned, as those of plans are: kernels are compiled for that."""


@dataclass(frozen=True, slots=True)
class MaskedRows:
    """n rows of a pass's logits and their masks."""

    rows: Int32
    """[n], places among the pass's logits; below 0: there is no such row, and its mask means nothing"""
    masks: Words
    """[n, words]: bit v % 32 of word v // 32 says whether token v may be chosen"""


@dataclass(frozen=True, slots=True)
class DeviceMasks:
    """`MaskedRows` on the device, int32, and which items of the pass are decided by them."""

    chosen: torch.Tensor
    """[n]"""
    masks: torch.Tensor
    """[n, words]"""
    deciding: torch.Tensor
    """[items, 4], as in a plan, with a number of rows below 0 for items that are left as they are"""


def num_words(vocab_size: int) -> int:
    """Of a mask."""
    return -(-vocab_size // 32)


class MaskRoom:
    """Room for the masks of one pass, on the host and on the device: `rows` uint32 [most, words], to be filled there.

    Filled, they are sent, and may be filled again once the pass that they were sent for has decided.
    """

    def __init__(self, limits: GpuLimits, vocab_size: int, device: torch.device) -> None:
        most, items, words = limits.max_decode_rows, limits.max_running, num_words(vocab_size)
        self._items_at = _aligned(most)
        self._masks_at = self._items_at + _aligned(4 * items)
        self._words = words
        size = self._masks_at + most * words
        self._host = torch.zeros(size, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        self._numbers = self._host.numpy()
        self.rows: Words = self._numbers[self._masks_at :].reshape(most, words).view(np.uint32)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @staticmethod
    def num_bytes(limits: GpuLimits, vocab_size: int) -> int:
        """What it takes of the device's memory."""
        most = limits.max_decode_rows
        return 4 * (_aligned(most) + _aligned(4 * limits.max_running) + most * num_words(vocab_size))

    def send(self, rows: Int32, deciding: Int32) -> DeviceMasks:
        """Bring the first masks, those of `rows` int32 [n], to the device, for what is queued next.

        `deciding`: int32 [items, 4]. They travel on a stream of their own, so that they do not wait for the pass.
        """
        n, items = len(rows), len(deciding)
        end = self._masks_at + n * self._words
        self._numbers[:n] = rows
        self._numbers[self._items_at : self._items_at + 4 * items] = deciding.ravel()
        source, target = self._host[:end], self._device[:end]
        if self._stream is None:
            target.copy_(source)
        else:
            with torch.cuda.stream(self._stream):
                target.copy_(source, non_blocking=True)
            torch.cuda.current_stream(target.device).wait_stream(self._stream)
        return DeviceMasks(
            chosen=target[:n],
            masks=target[self._masks_at :].view(n, self._words),
            deciding=target[self._items_at : self._items_at + 4 * items].view(items, 4),
        )


def _aligned(words: int) -> int:
    return -(-words // _ALIGNMENT) * _ALIGNMENT
