from __future__ import annotations

import numpy as np
import pytest

from slipstream_kernels.jit.arrays import LINE, aligned, aligned_empty


@pytest.mark.parametrize("shape", [(1,), (3, 5), (0, 4), (7, 1, 33)])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_arrays_start_on_a_cache_line(shape: tuple[int, ...], dtype: type) -> None:
    array = aligned_empty(shape, dtype)
    assert array.shape == shape and array.dtype == dtype and array.flags.c_contiguous
    assert not array.size or array.ctypes.data % LINE == 0


def test_aligned_copies() -> None:
    source = np.arange(12, dtype=np.float32).reshape(3, 4).T
    copy = aligned(source)
    assert np.array_equal(copy, source) and not np.shares_memory(copy, source)
