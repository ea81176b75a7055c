"""Mutations that know nothing of a format, and messages put one behind the other in one input."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from random import Random

NUMBERS = (
    0, 1, 2, 7, 8, 15, 16, 63, 64, 65, 127, 128, 255, 256, 511, 512, 513, 1023, 4095, 4096, 65535, 65536, 2**24,
    2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
"""Integers at which something changes in most formats."""
_LENGTH = struct.Struct("<I")
_LONGEST = 1 << 17


def number(random: Random, most: int = 2**64 - 1) -> int:
    """An integer from 0 to `most`, one at a border more often than not."""
    kind = random.random()
    if kind < 0.5:
        return min(random.choice(NUMBERS), most)
    if kind < 0.8:
        return random.randint(0, min(most, 300))
    return random.randint(0, most)


def mutated(random: Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """`data` after one to some eight mutations; parts of `others` may get into it."""
    buffer = bytearray(data)
    for _ in range(min(8, 1 + int(random.expovariate(0.7)))):
        random.choice(_MUTATIONS)(random, buffer)
        if others and random.random() < 0.1:
            _splice(random, buffer, random.choice(others))
    return bytes(buffer[:_LONGEST])


def joined(parts: Iterable[bytes]) -> bytes:
    """Parts as one input."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def parted(data: bytes, most: int = 64) -> list[bytes]:
    """The parts of any input, `most` at most; the last one is cut where the input ends."""
    parts: list[bytes] = []
    at = 0
    while at + _LENGTH.size <= len(data) and len(parts) < most:
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        parts.append(data[at : at + length])
        at += length
    return parts


def _place(random: Random, buffer: bytearray) -> int:
    return random.randrange(len(buffer)) if buffer else 0


def _flip(random: Random, buffer: bytearray) -> None:
    if buffer:
        buffer[_place(random, buffer)] ^= 1 << random.randrange(8)


def _set(random: Random, buffer: bytearray) -> None:
    if buffer:
        buffer[_place(random, buffer)] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))


def _insert(random: Random, buffer: bytearray) -> None:
    at = random.randint(0, len(buffer))
    buffer[at:at] = random.randbytes(1 + int(random.expovariate(0.3)))


def _remove(random: Random, buffer: bytearray) -> None:
    at = _place(random, buffer)
    del buffer[at : at + 1 + int(random.expovariate(0.2))]


def _repeat(random: Random, buffer: bytearray) -> None:
    at = _place(random, buffer)
    part = bytes(buffer[at : at + 1 + int(random.expovariate(0.05))])
    buffer[at:at] = part * random.choice((1, 1, 2, 8, 64))


def _write_number(random: Random, buffer: bytearray) -> None:
    value, size = number(random), random.choice((1, 2, 4, 8))
    at = _place(random, buffer)
    buffer[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, random.choice(("little", "big")))


def _cut(random: Random, buffer: bytearray) -> None:
    del buffer[_place(random, buffer) :]


def _splice(random: Random, buffer: bytearray, other: bytes) -> None:
    begin = random.randint(0, len(other))
    at = random.randint(0, len(buffer))
    buffer[at:at] = other[begin : begin + 1 + int(random.expovariate(0.02))]


_MUTATIONS: tuple[Callable[[Random, bytearray], None], ...] = (
    _flip, _flip, _set, _set, _insert, _remove, _repeat, _write_number, _write_number, _cut,
)  # fmt: skip
