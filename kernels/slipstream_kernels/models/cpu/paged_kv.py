"""Keys and values in slots: pages of consecutive slots for committed tokens, scratch slots for tree nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.arrays import aligned_empty
from slipstream_kernels.jit.compiler import kernel


class PagedKV:
    """float32 keys and values, each [layers, kv_heads, slots, head_dim].

    Slot ids: page p holds `p * page_size` to `(p + 1) * page_size - 1`; scratch slots follow the pages. Contents are
    undefined until written.
    """

    __slots__ = ("keys", "num_pages", "page_size", "scratch_slots", "values")

    def __init__(
        self, *, layers: int, kv_heads: int, head_dim: int, num_pages: int, page_size: int, scratch_slots: int
    ) -> None:
        if num_pages < 1 or page_size < 1 or scratch_slots < 0:
            raise ValueError(f"num_pages {num_pages}, page_size {page_size}, scratch_slots {scratch_slots}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.scratch_slots = scratch_slots
        shape = (layers, kv_heads, num_pages * page_size + scratch_slots, head_dim)
        self.keys: npt.NDArray[np.float32] = aligned_empty(shape, np.float32)
        self.values: npt.NDArray[np.float32] = aligned_empty(shape, np.float32)

    @property
    def num_slots(self) -> int:
        """Page slots and scratch slots together."""
        return int(self.keys.shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values together."""
        return self.keys.nbytes + self.values.nbytes

    def scratch_slot(self, index: int) -> int:
        """Slot id of scratch slot `index`."""
        if not 0 <= index < self.scratch_slots:
            raise IndexError(f"scratch slot {index}, there are {self.scratch_slots}")
        return self.num_pages * self.page_size + index

    def copy_slots(self, source: npt.NDArray[np.int32], target: npt.NDArray[np.int32]) -> None:
        """Copy slot `source[i]` to `target[i]` in all layers, i ascending: int32 [n] each."""
        if len(source) != len(target):
            raise ValueError(f"{len(source)} source slots but {len(target)} target slots")
        if len(source) and not _copy_slots(self.keys, self.values, source, target):
            raise IndexError(f"a slot is outside 0..{self.num_slots - 1}")


@kernel
def _copy_slots(
    keys: npt.NDArray[np.float32],
    values: npt.NDArray[np.float32],
    source: npt.NDArray[np.int32],
    target: npt.NDArray[np.int32],
) -> bool:
    layers, heads, slots, size = keys.shape
    for i in range(len(source)):
        if not (0 <= source[i] < slots and 0 <= target[i] < slots):
            return False
    for layer in range(layers):
        for head in range(heads):
            for i in range(len(source)):
                for d in range(size):
                    keys[layer, head, target[i], d] = keys[layer, head, source[i], d]
                    values[layer, head, target[i], d] = values[layer, head, source[i], d]
    return True
