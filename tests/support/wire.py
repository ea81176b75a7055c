"""Protobuf's wire format, written by hand where the library would refuse to."""

from __future__ import annotations


def inside(number: int, data: bytes) -> bytes:
    """`data` as the length-delimited field `number` (below 16)."""
    size, varint = len(data), b""
    while size > 0x7F:
        varint += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + varint + bytes([size]) + data
