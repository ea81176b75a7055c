"""Keys and values in slots: pages of consecutive slots for committed tokens, scratch slots for tree nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.arrays import aligned_empty
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.models.kv_form import FLOAT, KVForm


class PagedKV:
    """Keys and values, each [layers, kv_heads, slots, head_dim]: float32, or uint8 codes of `kv_codes`.

    key_scales, value_scales: scales of codes, float32 [layers, kv_heads, slots]; else of no slots.
    fixed: float32 [layers, 2], the scale that a layer's keys are written with, and its values; 0: each row's own.

    Slot ids: page p holds `p * page_size` to `(p + 1) * page_size - 1`; scratch slots follow the pages. Contents are
    undefined until written.
    """

    __slots__ = (
        "addresses", "fixed", "form", "key_scales", "keys", "num_pages", "page_size", "scratch_slots", "value_scales",
        "values",
    )  # fmt: skip

    def __init__(
        self,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        num_pages: int,
        page_size: int,
        scratch_slots: int,
        form: KVForm = FLOAT,
    ) -> None:
        if num_pages < 1 or page_size < 1 or scratch_slots < 0:
            raise ValueError(f"num_pages {num_pages}, page_size {page_size}, scratch_slots {scratch_slots}")
        self.num_pages = num_pages
        self.page_size = page_size
        self.scratch_slots = scratch_slots
        self.form = form
        slots = num_pages * page_size + scratch_slots
        rows = (layers, kv_heads, slots, head_dim)
        scales = (layers, kv_heads, slots if form.fp8 else 0)
        dtype: type[np.generic] = np.uint8 if form.fp8 else np.float32
        self.keys: npt.NDArray[np.generic] = aligned_empty(rows, dtype)
        self.values: npt.NDArray[np.generic] = aligned_empty(rows, dtype)
        self.key_scales: npt.NDArray[np.float32] = aligned_empty(scales, np.float32)
        self.value_scales: npt.NDArray[np.float32] = aligned_empty(scales, np.float32)
        self.fixed = np.array(form.scales or [(0, 0)] * layers, np.float32)
        arrays = (self.keys, self.values, self.key_scales, self.value_scales, self.fixed)
        self.addresses = np.array([array.ctypes.data for array in arrays], np.int64)

    @property
    def num_slots(self) -> int:
        """Page slots and scratch slots together."""
        return int(self.keys.shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values together, with their scales."""
        return self.keys.nbytes + self.values.nbytes + self.key_scales.nbytes + self.value_scales.nbytes

    def scratch_slot(self, index: int) -> int:
        """Slot id of scratch slot `index`."""
        if not 0 <= index < self.scratch_slots:
            raise IndexError(f"scratch slot {index}, there are {self.scratch_slots}")
        return self.num_pages * self.page_size + index

    def copy_slots(self, source: npt.NDArray[np.int32], target: npt.NDArray[np.int32]) -> None:
        """Copy slot `source[i]` to `target[i]` in all layers, i ascending: int32 [n] each."""
        if len(source) != len(target):
            raise ValueError(f"{len(source)} source slots but {len(target)} target slots")
        if not len(source):
            return
        if not _copy_slots(_bytes(self.keys), _bytes(self.values), source, target):
            raise IndexError(f"a slot is outside 0..{self.num_slots - 1}")
        if self.form.fp8:
            _copy_slots(_bytes(self.key_scales[..., None]), _bytes(self.value_scales[..., None]), source, target)


def _bytes(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """The same memory, [layers, kv_heads, slots, bytes of a slot]."""
    return rows.view(np.uint8)


@kernel
def _copy_slots(
    keys: npt.NDArray[np.uint8],
    values: npt.NDArray[np.uint8],
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
