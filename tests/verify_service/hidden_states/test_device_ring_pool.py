"""Rings of a GPU's memory, with the host's in its place: who may have one that another process has mapped."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from slipstream.rpc.descriptors import raise_limit
from slipstream.rpc.errors import FailedPreconditionError, ResourceExhaustedError
from slipstream_kernels.ipc.byte_ring import RingError
from support.host_device_memory import HostMemory
from verify_service.draft_link.slots.state_feed import StateFeed
from verify_service.hidden_states import device_ring_pool as device_rings
from verify_service.hidden_states.device_ring_pool import DeviceRingPool
from verify_service.hidden_states.process_watch import DraftProcess

HIDDEN = 16


def rings_of(memory: HostMemory) -> DeviceRingPool:
    return DeviceRingPool(memory, max_step_rows=64, hidden_size=HIDDEN)


def test_a_ring_serves_its_own_process_again_and_another_once_that_has_gone() -> None:
    memory = HostMemory()
    rings = rings_of(memory)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        first = rings.take(other.pid, 2)
        assert rings.take(other.pid, 2).block is not first.block, "the first is in use"
        first.block.write_nonce(b"a request's states")
        first.closed = True
        assert rings.take(os.getpid(), 2).block is not first.block, "its process lives"
        again = rings.take(other.pid, 2)
        assert again.block is first.block
        assert not again.block.numbers().any()
        assert again.block.read_nonce(16) == again.nonce != first.nonce
        again.closed = True
        other.kill()
    assert rings.take(os.getpid(), 2).block is first.block
    assert len(memory.blocks) == 3


def test_a_ring_that_a_step_may_still_write_serves_nobody() -> None:
    memory = HostMemory()
    rings = rings_of(memory)
    ring = rings.take(os.getpid(), 2)
    span = ring.reserve(StateFeed((1,)), 0, 3, HIDDEN)
    ring.closed = True
    assert rings.take(os.getpid(), 2).block is not ring.block
    del span
    gc.collect()
    assert rings.take(os.getpid(), 2).block is ring.block


def test_rings_are_bounded_while_their_processes_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_rings, "MAX_RINGS", 2)
    monkeypatch.setattr(device_rings, "_ROUNDED", 512)
    memory = HostMemory()
    rings = rings_of(memory)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        rings.take(os.getpid(), 2)
        rings.take(other.pid, 2).closed = True
        with pytest.raises(ResourceExhaustedError, match="2 rings are mapped by processes that live"):
            rings.take(os.getpid(), 1)
        other.kill()
    rings.take(os.getpid(), 3)
    assert [block.closed for block in memory.blocks] == [False, True, False]
    with pytest.raises(FailedPreconditionError, match="cannot be seen"):
        rings.take(other.pid, 2)


def test_a_process_is_told_from_another_and_its_end_is_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        watched = DraftProcess(other.pid)
        assert watched == DraftProcess(other.pid) != DraftProcess(os.getpid())
        assert not watched.gone
        other.kill()
    assert watched.gone
    for number in (other.pid, 0, -1, 2**40):
        with pytest.raises(FailedPreconditionError, match="cannot be seen"):
            DraftProcess(number)


@pytest.mark.parametrize("claim", [-1, 1, 4, 2**63])
def test_a_drafter_cannot_release_what_was_not_written_or_take_it_back(claim: int) -> None:
    ring = rings_of(HostMemory()).take(os.getpid(), 1)
    spans = [ring.reserve(StateFeed((1,)), 0, 8, HIDDEN) for _ in range(2)]
    ring.release(2, written=3)
    with pytest.raises(RingError, match="released"):
        ring.release(claim, written=3)
    assert all(spans) and ring.released == 2


def test_room_comes_back_as_the_drafter_releases_it_or_at_once_where_nothing_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_rings, "_ROUNDED", 512)
    monkeypatch.setattr(device_rings, "STEPS", 1)
    ring = DeviceRingPool(HostMemory(), max_step_rows=32, hidden_size=HIDDEN).take(os.getpid(), 1)  # of 1,024 bytes
    slot = StateFeed((1,))

    def reserve(rows: int, message: int = 0) -> int | None:
        span = ring.reserve(slot, 0, rows, HIDDEN)
        if span is None:
            return None
        span.reservation.message = message
        return span.position

    assert [reserve(20) for _ in range(5)] == [0, 1024, 2048, 3072, 4096], "640 bytes each, none across the end"
    assert [reserve(8, message) for message in (1, 2, 4, 3, 5)] == [4864, 5120, 5376, 5632, None]
    ring.release(3, written=9)
    assert [reserve(8, message) for message in (5, 6, 7)] == [5888, 6144, None]
    assert reserve(40) is None
    ring.release(4, written=9)
    held = ring.reserve(slot, 0, 8, HIDDEN)
    assert held is not None and held.position == 6400
    ring.release(6, written=9)
    assert [reserve(8, 8) for _ in range(4)] == [6656, 6912, 7168, None], "a step may still write to that which is held"
    held.reservation.queued = 1
    del held
    ring.release(9, written=9)
    assert reserve(8) is None, "a record that names it waits"


def test_a_process_is_watched_by_a_descriptor_beyond_a_thousand() -> None:
    raise_limit()
    held = [os.dup(0) for _ in range(1100)]
    try:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            watched = DraftProcess(other.pid)
            assert not watched.gone
            other.kill()
        assert watched.gone
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_a_queue_is_kept_from_others_until_its_process_has_gone() -> None:
    memory = HostMemory()
    rings = rings_of(memory)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        first = rings.take_queue(other.pid, 8)
        assert first.block.read_nonce(16) == first.nonce
        assert rings.take_queue(other.pid, 8).block is not first.block, "the first is in use"
        first.closed = True
        assert rings.take_queue(os.getpid(), 8).block is not first.block, "its process lives"
        first.block.write_nonce(b"what a pass decided")
        again = rings.take_queue(other.pid, 8)
        assert again.block is first.block
        assert not again.block.numbers().any()
        again.closed = True
        other.kill()
    assert rings.take_queue(os.getpid(), 8).block is first.block
    assert rings.take(os.getpid(), 2).block not in [each.block for each in (first, again)], "a ring has its own"
