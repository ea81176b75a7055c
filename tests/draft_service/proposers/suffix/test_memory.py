from __future__ import annotations

import mmap

from draft_service.proposers.suffix.memory import TreeMemory


class Fixed(mmap.mmap):
    """A mapping of a system that cannot grow one."""

    def resize(self, _size: int) -> None:
        raise SystemError("mmap: resizing not available--no mremap()")


def test_what_was_written_stays_when_memory_grows() -> None:
    memory = TreeMemory(8, tokens=4, removable=True)
    memory.text[:4] = [1, 2, 3, 4]
    memory.reserve_text(1_000_000)
    assert memory.text[:4].tolist() == [1, 2, 3, 4]
    assert memory["text"] == memory._text.address
    assert len(memory.text) > 1_000_000


def test_where_mappings_cannot_grow_they_are_copied() -> None:
    memory = TreeMemory(8, tokens=4, removable=False)
    memory._text._map = Fixed(-1, memory._text.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.text[:4] = [5, 6, 7, 8]
    memory.reserve_text(50_000)
    assert memory.text[:4].tolist() == [5, 6, 7, 8]
    assert len(memory.text) > 50_000


def test_room_for_nodes_is_there_before_they_are() -> None:
    memory = TreeMemory(8, tokens=4, removable=True)
    size = memory.size
    memory.reserve_nodes(10)
    memory.reserve_nodes(10)
    grown = memory.size
    assert grown >= size
    memory.reserve_nodes(100_000)
    assert memory.size >= 100_000 * 48 > grown


def test_memory_is_given_back_by_pieces() -> None:
    memory = TreeMemory(8, tokens=100_000, removable=True)
    memory.reserve_nodes(100_000)
    size, pieces = memory.size, 1
    while memory.release(1 << 20):
        assert 0 < size - memory.size <= 1 << 20
        size, pieces = memory.size, pieces + 1
    assert memory.size == 5 * mmap.PAGESIZE
    assert pieces >= 5
