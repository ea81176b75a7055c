"""gRPC messages of bounded cost: fields are counted in the bytes before they are decoded.

Four MiB can hold two million empty strings or messages, each of which takes 16 to 25 times its size once decoded.
Encoding: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from slipstream.rpc.errors import InvalidArgumentError

_VARINT, _FIXED64, _BYTES, _START_GROUP, _END_GROUP, _FIXED32 = range(6)
_WIDTHS: Final = {_FIXED64: 8, _FIXED32: 4, _START_GROUP: 0, _END_GROUP: 0}
_LONGEST_VARINT: Final = 10
_LEAST_FIELDS: Final = 16384
_BYTES_A_FIELD: Final = 64
"""A message may have a field for so many bytes of the largest message."""


_LEAST_NUMBERS: Final = 65536
_BYTES_A_NUMBER: Final = 6
"""Packed lists may have a number for so many bytes of the largest message: a byte there takes four when decoded."""
_INSIDE_VARINT: Final = bytes(range(0x80, 0x100))


class _MalformedError(Exception):
    """The decoder itself will say what is wrong."""


def check_fields(data: bytes | bytearray, kind: Any, max_bytes: int) -> None:
    """InvalidArgumentError, naming the outermost field, if a `kind` has too many fields, those of its parts included.

    `kind` is a message's descriptor. `max_bytes` is the size of the largest message, from which the limits follow. A
    packed list of numbers is one field, and its numbers are counted too. Bytes that are no message are left to the
    decoder.
    """
    max_numbers = max(_LEAST_NUMBERS, max_bytes // _BYTES_A_NUMBER)
    counter = _Counter(data, max(_LEAST_FIELDS, max_bytes // _BYTES_A_FIELD), max_numbers)
    try:
        counter.count(kind, 0, len(data))
    except _MalformedError:
        return


class _Counter:
    """Counts fields, those of known submessages included. The nesting is that of the schema, hence shallow."""

    __slots__ = ("_data", "_left", "_max_numbers", "_most", "_numbers", "_place")

    def __init__(self, data: bytes | bytearray, most: int, max_numbers: int) -> None:
        self._data = data
        self._most = self._left = most
        self._max_numbers = self._numbers = max_numbers
        self._place = 0

    def count(self, kind: Descriptor, begin: int, end: int, outermost: str = "") -> None:
        """Count the fields between two places, and those inside."""
        self._place = begin
        while self._place < end:
            tag = self._varint(end)
            field = kind.fields_by_number.get(tag >> 3)
            name = outermost or (field.name if field is not None else "")
            self._left -= 1
            if self._left < 0:
                reason = f"{name or 'the request'} makes too many fields: a request may have at most {self._most}"
                raise InvalidArgumentError(reason, field=name)
            self._skip(tag & 7, field, end, name)

    def _skip(self, wire_type: int, field: FieldDescriptor | None, end: int, name: str) -> None:
        if wire_type == _VARINT:
            self._varint(end)
        elif wire_type == _BYTES:
            size = self._varint(end)
            stop = self._place + size
            if stop > end:
                raise _MalformedError
            if field is not None and field.message_type is not None:
                self.count(field.message_type, self._place, stop, name)
            elif field is not None and field.is_packed:
                self._count_numbers(stop, name)
            self._place = stop
        elif wire_type in _WIDTHS:
            self._place += _WIDTHS[wire_type]
        else:
            raise _MalformedError

    def _count_numbers(self, stop: int, name: str) -> None:
        """Count the varints up to `stop`. Each ends with its only byte below 0x80."""
        self._numbers -= len(self._data[self._place : stop].translate(None, _INSIDE_VARINT))
        if self._numbers < 0:
            reason = f"{name} has too many numbers: a request may have at most {self._max_numbers}"
            raise InvalidArgumentError(reason, field=name)

    def _varint(self, end: int) -> int:
        value = 0
        for index in range(_LONGEST_VARINT):
            if self._place >= end:
                raise _MalformedError
            byte = self._data[self._place]
            self._place += 1
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value
        raise _MalformedError
