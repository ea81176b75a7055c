"""Arrays that start on a cache line, so that no vector of 16 floats crosses one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LINE = 64
"""Bytes of a cache line."""


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array of undefined contents. Pages of memory are taken when they are first written."""
    kind = np.dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    block = np.empty(size + LINE, np.uint8)
    start = -int(block.ctypes.data) % LINE
    return block[start : start + size].view(kind).reshape(shape)


def aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A C-contiguous copy."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy
