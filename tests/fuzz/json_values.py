"""JSON values mutated member by member, and text that is nearly JSON."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from fuzz.raw_bytes import mutated, number

_LEAVES = (
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 1e-5, 1e308, 2**31, 2**53, 2**64, -(2**64), 10**30, "", "a", "x" * 300,
    "\0", "é", "東", "\ud800", "\U0001f600", "user", "tiny", "1", "-1", "NaN", [], {}, [[]], [None], {"a": None}, [0],
    ["a"], [[0]], {"type": "text", "text": "x"},
)  # fmt: skip
_NAMES = (
    "a",
    "",
    "type",
    "text",
    "role",
    "content",
    "n",
    "seed",
    "stop",
    "prompt",
    "0",
    "1",
    "é",
    "\ud800",
    "__class__",
)


def leaf(random: Random) -> Any:
    """Some value."""
    return number(random) if random.random() < 0.15 else random.choice(_LEAVES)


def changed(random: Random, value: Any, depth: int = 0) -> Any:
    """The value with one place in it changed; nothing that it holds is modified."""
    if random.random() < 0.15 or depth > 12:
        return leaf(random)
    if isinstance(value, dict):
        return _changed_object(random, value, depth)
    if isinstance(value, list):
        return _changed_list(random, value, depth)
    if isinstance(value, str) and random.random() < 0.5:
        at = random.randint(0, len(value))
        return value[:at] + random.choice(("", "\0", "\ud83d", "<|end|>", "\u00df", "b" * 400)) + value[at:]
    return leaf(random)


def text_of(random: Random, value: Any) -> bytes:
    """The value as JSON, or as what is nearly that."""
    kind = random.random()
    data = json.dumps(value, ensure_ascii=kind < 0.5).encode("utf-8", "surrogatepass")
    if kind < 0.8:
        return data
    if kind < 0.83:
        return _twice(random, data)
    if kind < 0.86:
        depth = random.choice((5, 100, 500, 3000))
        return data.replace(b'"a"', b"[" * depth + b"]" * depth) if b'"a"' in data else b"[" * depth
    if kind < 0.88:
        return data.decode("utf-8", "replace").encode(random.choice(("utf-16", "utf-32", "utf-8-sig")))
    if kind < 0.9:
        return data.replace(
            b"1", random.choice((b"NaN", b"-Infinity", b"1e999", b"0x1", b"01", b"1.", b"+1", b"9" * 400))
        )
    return mutated(random, data)


def _changed_object(random: Random, value: dict[str, Any], depth: int) -> dict[str, Any]:
    result = dict(value)
    kind = random.random()
    if kind < 0.15 and result:
        del result[random.choice(list(result))]
    elif kind < 0.3 or not result:
        result[random.choice(_NAMES)] = leaf(random)
    elif kind < 0.35:
        result.update({str(index): leaf(random) for index in range(random.choice((10, 200, 1100)))})
    else:
        name = random.choice(list(result))
        result[name] = changed(random, result[name], depth + 1)
    return result


def _changed_list(random: Random, value: list[Any], depth: int) -> list[Any]:
    result = list(value)
    kind = random.random()
    if kind < 0.15 and result:
        del result[random.randrange(len(result))]
    elif kind < 0.35 or not result:
        result[random.randint(0, len(result)) :] = [leaf(random)] * random.choice((1, 1, 2, 20, 700))
    else:
        index = random.randrange(len(result))
        result[index] = changed(random, result[index], depth + 1)
    return result


def _twice(random: Random, data: bytes) -> bytes:
    """With a member named twice, or two values one behind the other."""
    if data.startswith(b"{") and len(data) > 2 and random.random() < 0.7:
        return b"{" + data[1:-1] + b"," + data[1:]
    return data + data
