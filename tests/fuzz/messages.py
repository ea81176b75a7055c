"""Protobuf messages mutated field by field, then perhaps as bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fuzz.raw_bytes import mutated, number

_INTEGERS = {
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 2**31 - 1),
}
_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-5, 1e-38, 1e38, 2.0, 2.0001, 100.0, math.inf, -math.inf, math.nan)
_TEXTS = (
    "", "a", "p", "q", "ngram", "grpc", "shm", "user", "\0", "\x7f", "é", "東", "\U0001f600", "\u202e", "<|end|>",
    "<|begin|>", "{{ 1 }}", "x" * 256, "x" * 257, "y" * 5000, "slipstream-demo", "tiny",
)  # fmt: skip
_MOST_REPEATS = 200

Message_ = Any
"""Generated messages, whose fields are known to their descriptors alone."""


def made(random: Random, make: Sequence[Callable[[Random], Message]], others: Sequence[bytes] = ()) -> bytes:
    """Bytes of a message: a valid one, one with mutated fields, one with mutated bytes, or no message at all."""
    message = random.choice(make)(random)
    kind = random.random()
    if kind < 0.15:
        return message.SerializeToString()
    for _ in range(1 + int(random.expovariate(0.8))):
        mutate(random, message)
    data = message.SerializeToString()
    if kind < 0.7:
        return data
    if kind < 0.97:
        return mutated(random, data, others)
    return random.randbytes(int(random.expovariate(0.02)))


def mutate(random: Random, message: Message_) -> None:
    """Change one field of the message or of one that it holds."""
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    weights = [1 if field.message_type is None else 4 for field in fields]
    field = random.choices(fields, weights)[0]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _mutate_map(random, getattr(message, field.name), field)
    elif field.is_repeated:
        _mutate_repeated(random, message, field)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if random.random() < 0.15:
            message.ClearField(field.name)
        else:
            part = getattr(message, field.name)
            part.SetInParent()
            mutate(random, part)
    elif random.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, value_of(random, field))


def value_of(random: Random, field: FieldDescriptor) -> Any:
    """A value that the field can be set to, seldom one that it should be."""
    kind = field.cpp_type
    if kind in _INTEGERS:
        low, high = _INTEGERS[kind]
        value = min(number(random), high)
        return max(low, -value) if low < 0 and random.random() < 0.3 else value
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        if random.random() < 0.6:
            return random.choice(_FLOATS)
        return struct.unpack("<f", random.randbytes(4))[0]
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return random.random() < 0.5
    if field.type == FieldDescriptor.TYPE_BYTES:
        return random.randbytes(int(random.expovariate(0.05)))
    if random.random() < 0.7:
        return random.choice(_TEXTS)
    return "".join(
        chr(random.choice((random.randrange(128), random.randrange(0x800)))) for _ in range(random.randrange(40))
    )


def _mutate_map(random: Random, entries: Any, field: FieldDescriptor) -> None:
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    for _ in range(random.choice((1, 1, 1, 3, 100))):
        entries[value_of(random, key)] = value_of(random, value)


def _mutate_repeated(random: Random, message: Message_, field: FieldDescriptor) -> None:
    entries = getattr(message, field.name)
    kind = random.random()
    count = len(entries)
    if kind < 0.1:
        message.ClearField(field.name)
    elif kind < 0.3 and count:
        del entries[random.randrange(count)]
    elif kind < 0.45 and count and count <= _MOST_REPEATS:
        entries.extend(list(entries)[random.randrange(count) :] * random.choice((1, 1, 1, 5)))
    elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        mutate(random, random.choice(entries) if count and kind < 0.9 else entries.add())
    elif count and kind < 0.8:
        entries[random.randrange(count)] = value_of(random, field)
    else:
        entries.extend([value_of(random, field) for _ in range(random.choice((1, 1, 2, 70)))])
