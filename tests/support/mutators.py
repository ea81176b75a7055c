"""Ways in which a file of a checkpoint may lie. Equal bytes and seeds give equal files, whatever came before."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from copy import deepcopy
from typing import Any

Mutator = Callable[[bytes, random.Random], bytes]

HOSTILE = (
    0, -1, 1, 2, 3, 7, 64, 1000, 2**16, 10**6, 2**24, 2**31 - 1, 2**31, 2**32, 2**40, 10**9, 10**12, 2**63,
    2**64, 10**30,
    0.0, -0.0, 0.5, 1e-300, 1e-45, 1e300, float("nan"), float("inf"), float("-inf"), True, False, None,
    "", "x", "nan", "../../etc/passwd", "a\nb", "\ud800", "x" * 100_000, [], {}, [[]], [-1], [10**12], [None], ["x"],
    list(range(5000)), {"a": 1}, {"quant_method": "gptq"}, {"rope_type": "llama3"}, {"rope_type": "yarn"},
)  # fmt: skip
"""Values that a field may suddenly have."""


def json_text(content: bytes, pick: random.Random) -> bytes:
    """A JSON file with one to three fields that are other, gone, doubled or swapped, or with damaged bytes."""
    if pick.random() < 0.2:
        return damaged(content, pick)
    document = json.loads(content)
    for _ in range(pick.choice((1, 1, 2, 3))):
        document = _changed(document, pick)
    if pick.random() < 0.03:
        depth = pick.choice((100, 1000, 100_000))
        return b'{"a":' * depth + b"1" + b"}" * depth
    return json.dumps(document, ensure_ascii=pick.random() < 0.5).encode("utf-8", "surrogatepass")


def damaged(content: bytes, pick: random.Random) -> bytes:
    """Cut off, flipped, overwritten, doubled or empty."""
    kind = pick.randrange(5)
    at = pick.randrange(len(content)) if content else 0
    if kind == 0:
        return content[:at]
    if kind == 1:
        changed = bytearray(content)
        for _ in range(pick.choice((1, 3, 30))):
            changed[pick.randrange(len(changed))] ^= 1 << pick.randrange(8)
        return bytes(changed)
    if kind == 2:
        return content[:at] + pick.randbytes(pick.choice((1, 8, 64))) + content[at + pick.choice((0, 8)) :]
    if kind == 3:
        return content + content[at:]
    return b""


def header(content: bytes, pick: random.Random) -> bytes:
    """A safetensors file whose header lies: its length, or names, types, shapes and offsets."""
    size = int.from_bytes(content[:8], "little")
    text, body = content[8 : 8 + size], content[8 + size :]
    if pick.random() < 0.2:
        length = pick.choice((0, 1, size - 1, size + 1, size + 8, len(content), 10**8, 2**31, 2**40, 2**63, 2**64 - 1))
        return length.to_bytes(8, "little") + text + body
    text = damaged(text, pick) if pick.random() < 0.2 else _entries(json.loads(text), pick)
    return len(text).to_bytes(8, "little") + text + body


def body(content: bytes, pick: random.Random) -> bytes:
    """A safetensors file whose numbers are others, among them NaN and infinity, or which ends early or late."""
    start = 8 + int.from_bytes(content[:8], "little")
    changed = bytearray(content)
    if pick.random() < 0.2:
        return content[: pick.randrange(start, len(content))] if pick.random() < 0.5 else content + bytes(64)
    number = pick.choice((0x7FC0, 0xFFC0, 0x7F80, 0xFF80, 0x7F7F, 0x0001, 0x8000, None))
    first = pick.randrange(start, len(content) - 2)
    for place in range(first, min(len(content) - 2, first + 2 * pick.choice((1, 4, 64, 4096))), 2):
        struct.pack_into("<H", changed, place, pick.randrange(1 << 16) if number is None else number)
    return bytes(changed)


def _entries(entries: dict[str, Any], pick: random.Random) -> bytes:
    name = pick.choice([each for each in entries if each != "__metadata__"])
    entry = entries[name]
    kind = pick.randrange(7)
    if kind == 0:
        entry["dtype"] = pick.choice(("F64", "F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F4", "x", 7, None))
    elif kind == 1:
        entry["shape"] = pick.choice(([], [0], [2**40], [2**40, 2**40], [-1], [1.5], entry["shape"][::-1], "x", None))
    elif kind == 2:
        start, end = entry["data_offsets"]
        offsets = (
            [0, 0],
            [end, start],
            [start, end + 1],
            [start, 2**63],
            [0, end],
            [-1, end],
            [start + 2, end + 2],
            [],
        )
        entry["data_offsets"] = pick.choice(offsets)
    elif kind == 3:
        entries[pick.choice(("x", "a\nb", "", "x" * 10_000, f"{name}.weight", name.replace("0", "1")))] = entries.pop(
            name
        )
    elif kind == 4:
        del entries[name]
    elif kind == 5:
        other = pick.choice([each for each in entries if each != "__metadata__"])
        entries[name], entries[other] = entries[other], entries[name]
    else:
        entries = _changed(entries, pick)
    return json.dumps(entries).encode("utf-8", "surrogatepass")


def _changed(document: Any, pick: random.Random) -> Any:
    """The document with one value, somewhere in it, replaced."""
    if not isinstance(document, dict | list) or not document or pick.random() < 0.05:
        return _replaced(document, pick)
    key = pick.choice(list(document)) if isinstance(document, dict) else pick.randrange(len(document))
    if pick.random() < 0.1:
        del document[key]
    elif pick.random() < 0.1 and isinstance(document, dict):
        other = pick.choice(list(document))
        document[key], document[other] = document[other], document[key]
    else:
        document[key] = _changed(document[key], pick)
    return document


def _replaced(value: Any, pick: random.Random) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and pick.random() < 0.5:
        return pick.choice((value + 1, value - 1, value * 2, value * 1000, value / 2, -value, str(value), value * 16))
    if isinstance(value, str) and value and pick.random() < 0.5:
        return pick.choice((value[:-1], value + value, value.upper(), value[::-1]))
    return deepcopy(pick.choice(HOSTILE))  # what comes of it is mutated further
