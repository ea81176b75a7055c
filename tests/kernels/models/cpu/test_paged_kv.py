from __future__ import annotations

import numpy as np
import pytest

from slipstream_kernels.models.cpu.paged_kv import PagedKV


def new_cache() -> PagedKV:
    cache = PagedKV(layers=2, kv_heads=3, head_dim=16, num_pages=4, page_size=2, scratch_slots=5)
    rng = np.random.default_rng(0)
    cache.keys[...] = rng.normal(size=cache.keys.shape)
    cache.values[...] = rng.normal(size=cache.values.shape)
    return cache


def test_slots_and_sizes() -> None:
    cache = new_cache()
    assert cache.num_slots == 13 and cache.scratch_slot(0) == 8 and cache.scratch_slot(4) == 12
    assert cache.nbytes == 2 * 4 * 2 * 3 * 13 * 16
    assert cache.keys.ctypes.data % 64 == 0
    with pytest.raises(IndexError):
        cache.scratch_slot(5)
    with pytest.raises(ValueError, match="page_size 0"):
        PagedKV(layers=1, kv_heads=1, head_dim=16, num_pages=1, page_size=0, scratch_slots=0)


def test_copy_slots_moves_keys_and_values_of_all_layers() -> None:
    cache = new_cache()
    keys, values = cache.keys.copy(), cache.values.copy()
    source, target = np.array([8, 12, 3], np.int32), np.array([0, 8, 7], np.int32)
    cache.copy_slots(source, target)
    keys[:, :, target], values[:, :, target] = keys[:, :, source], values[:, :, source]
    assert np.array_equal(cache.keys, keys) and np.array_equal(cache.values, values)


@pytest.mark.parametrize(("source", "target"), [([13], [0]), ([0], [-1])])
def test_copy_slots_refuses_unknown_slots(source: list[int], target: list[int]) -> None:
    cache = new_cache()
    before = cache.keys.copy()
    with pytest.raises(IndexError):
        cache.copy_slots(np.array([1, *source], np.int32), np.array([2, *target], np.int32))
    assert np.array_equal(cache.keys, before)


def test_copy_slots_needs_equal_lengths() -> None:
    with pytest.raises(ValueError, match="1 source slots but 2 target slots"):
        new_cache().copy_slots(np.zeros(1, np.int32), np.zeros(2, np.int32))
