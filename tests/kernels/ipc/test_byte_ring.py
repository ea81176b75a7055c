"""Messages cross in order and whole; a peer that scribbles is found out and can make nobody read or write beyond."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import threading

import pytest

from slipstream_kernels.ipc.byte_ring import (
    DATA_OFFSET,
    MIN_CAPACITY,
    RingError,
    RingReader,
    RingWriter,
    capacity_for,
    create_ring,
    open_ring,
    reader,
    writer,
)
from slipstream_kernels.ipc.segment import Segment, SegmentError
from tests.kernels.ipc.test_segment import _environment

NONCE = bytes(range(16))
MOST = 1 << 20
WRITTEN, READ = 64, 128


@pytest.fixture
def ends() -> tuple[Segment, RingWriter, RingReader]:
    ours = create_ring(MIN_CAPACITY, NONCE)
    theirs = open_ring(ours.path, DATA_OFFSET + MIN_CAPACITY, NONCE)
    return theirs, writer(ours), reader(theirs)


def poke(segment: Segment, offset: int, value: int) -> None:
    struct.pack_into("<Q", segment.memory, offset, value % 2**64)


def peek(segment: Segment, offset: int) -> int:
    (value,) = struct.unpack_from("<Q", segment.memory, offset)
    return value


def test_messages_of_all_lengths_cross_many_laps(ends) -> None:
    _, out, into = ends
    draw = random.Random(1)
    sent = []
    for _ in range(3000):
        message = draw.randbytes(draw.choice((0, 1, 7, 8, 9, 100, 1000, out.limit)))
        if out.write(message):
            sent.append(message)
        else:
            assert into.filled
        while draw.random() < 0.6 and (message := into.read(MOST)) is not None:
            assert message == sent.pop(0)
    while sent:
        assert into.read(MOST) == sent.pop(0)
    assert into.read(MOST) is None
    assert not into.filled


def test_a_full_ring_takes_nothing_and_loses_nothing(ends) -> None:
    _, out, into = ends
    count = 0
    while out.write(b"%4d" % count):
        count += 1
    assert count == MIN_CAPACITY // 16
    assert out.room < 8
    assert [into.read(4) for _ in range(count)] == [b"%4d" % i for i in range(count)]
    assert into.read(4) is None
    assert out.write(bytes(out.limit))
    assert not out.write(b"")
    assert into.read(out.limit) == bytes(out.limit)
    assert not out.write(bytes(out.limit + 1))


def test_the_layout_is_the_published_one(ends) -> None:
    theirs, out, into = ends
    out.write(b"hello")
    assert theirs.memory[:8] == b"SLIPRING"
    assert struct.unpack_from("<IIQ", theirs.memory, 8) == (1, 4096, MIN_CAPACITY)
    assert theirs.memory[24:40] == NONCE
    assert (peek(theirs, WRITTEN), peek(theirs, READ)) == (16, 0)
    assert theirs.memory[4096:4109] == b"\5\0\0\0\1\0\0\0hello"
    assert into.read(5) == b"hello"
    assert peek(theirs, READ) == 16


@pytest.mark.parametrize("value", [1, 7, 24 - 1, MIN_CAPACITY + 16, 2**32, 2**63, -1, -8])
def test_a_scribbled_written_index_is_found_out(ends, value: int) -> None:
    theirs, out, into = ends
    out.write(b"12345678")
    assert into.read(MOST) == b"12345678"
    poke(theirs, WRITTEN, value)
    with pytest.raises(RingError):
        into.read(MOST)


def test_a_written_index_may_not_go_back(ends) -> None:
    theirs, out, into = ends
    for _ in range(3):
        out.write(b"12345678")
    assert into.read(MOST) is not None
    poke(theirs, WRITTEN, 32)
    with pytest.raises(RingError):
        into.read(MOST)


@pytest.mark.parametrize("value", [49, 2**63, -1, 15])
def test_a_scribbled_read_index_is_found_out(ends, value: int) -> None:
    theirs, out, into = ends
    for _ in range(3):
        out.write(b"12345678")
        assert into.read(MOST) is not None
        assert out.room
    poke(theirs, READ, value)
    with pytest.raises(RingError):
        out.write(b"")


@pytest.mark.parametrize("length", [9, 17, 100, MIN_CAPACITY, 2**31, 2**32 - 1, 2**32 - 8])
def test_a_scribbled_length_is_found_out(ends, length: int) -> None:
    theirs, out, into = ends
    out.write(b"12345678")
    struct.pack_into("<I", theirs.memory, DATA_OFFSET, length)
    with pytest.raises(RingError):
        into.read(MOST)


def test_lengths_beyond_the_limit_and_wrong_numbers_are_found_out(ends) -> None:
    theirs, out, into = ends
    out.write(b"12345678")
    with pytest.raises(RingError):
        into.read(7)
    struct.pack_into("<I", theirs.memory, DATA_OFFSET + 4, 2)
    with pytest.raises(RingError):
        into.read(8)


def test_random_scribbles_end_in_an_error_or_in_bytes_of_the_ring() -> None:
    draw = random.Random(2)
    for _ in range(300):
        ours = create_ring(MIN_CAPACITY, NONCE)
        out, into = writer(ours), reader(ours)
        try:
            for _ in range(40):
                if draw.random() < 0.7:
                    out.write(draw.randbytes(draw.randrange(200)))
                if draw.random() < 0.3:
                    at = draw.choice((WRITTEN, READ, DATA_OFFSET + draw.randrange(MIN_CAPACITY - 8)))
                    poke(ours, at, draw.choice((draw.getrandbits(64), draw.getrandbits(12), peek(ours, at) ^ 8)))
                message = into.read(500)
                assert message is None or len(message) <= 500
        except RingError:
            continue


def test_another_ring_is_not_taken_for_the_one_that_was_meant() -> None:
    ours = create_ring(MIN_CAPACITY, NONCE)
    size = DATA_OFFSET + MIN_CAPACITY
    for nonce, wanted in ((bytes(16), size), (NONCE, size * 2), (NONCE, 100), (b"", size)):
        with pytest.raises(SegmentError):
            open_ring(ours.path, wanted, nonce)
    ours.memory[8:12] = b"\2\0\0\0"
    with pytest.raises(SegmentError):
        open_ring(ours.path, size, NONCE)


@pytest.mark.parametrize(("length", "messages"), [(1, 1), (5000, 2), (1 << 20, 2)])
def test_the_capacity_holds_what_was_asked_for(length: int, messages: int) -> None:
    capacity = capacity_for(length, messages)
    out = writer(create_ring(capacity, NONCE))
    assert all(out.write(bytes(length)) for _ in range(messages))


ECHO = """
import sys
from slipstream_kernels.ipc.byte_ring import open_ring, reader, writer
into, out = (open_ring(path, int(size), bytes(range(16))) for path, size in (sys.argv[1:3], sys.argv[3:5]))
into, out = reader(into), writer(out)
while True:
    message = into.read(1 << 20)
    if message is None:
        into.wait(20.0)
    elif message == b"end":
        break
    else:
        while not out.write(message[::-1]):
            pass
"""


def test_two_processes_exchange_without_loss() -> None:
    there, back = create_ring(MIN_CAPACITY, NONCE), create_ring(MIN_CAPACITY, NONCE)
    size = str(DATA_OFFSET + MIN_CAPACITY)
    arguments = [sys.executable, "-c", ECHO, there.path, size, back.path, size]
    child = subprocess.Popen(arguments, env=_environment())
    out, into, draw = writer(there), reader(back), random.Random(3)
    for _ in range(2000):
        message = draw.randbytes(draw.randrange(1, 300))
        assert out.write(message)
        while (echo := into.read(MOST)) is None:
            into.wait(20.0, spin=0.00002)
            assert child.poll() is None
        assert echo == message[::-1]
    assert out.write(b"end")
    assert child.wait(60) == 0


@pytest.mark.parametrize("spin", [0.0, 0.001])
def test_a_wait_ends_for_what_another_thread_has_read_meanwhile(spin: float) -> None:
    segment = create_ring(MIN_CAPACITY, NONCE)
    out, into = writer(segment), reader(segment)
    known = into.position
    assert out.write(b"tree")
    assert into.read(MOST) == b"tree"
    waiting = threading.Thread(target=into.wait, args=(120.0,), kwargs={"spin": spin, "position": known}, daemon=True)
    waiting.start()
    waiting.join(60.0)
    assert not waiting.is_alive()
