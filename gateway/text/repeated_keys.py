"""Keys that an object of a body has twice, of which a JSON reader keeps one without a word."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, Final

from gateway.core.limits import shortened
from slipstream.rpc.errors import InvalidArgumentError

_TEXT: Final[dict[str, Any]] = {"parse_int": str, "parse_float": str, "parse_constant": str}
"""Numbers are not looked at: one of thousands of digits takes long, or is refused by Python."""


_LARGE: Final = 1 << 16
"""Bytes of a body from which on texts in it are not decoded, which may take many times their size."""
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"(\s*+:)?', re.DOTALL)


class _Pairs(list[tuple[str, Any]]):
    """An object, as its keys and values in order."""


def check_repeated_keys(body: bytes | bytearray, ignored: Collection[str] = ()) -> None:
    """InvalidArgumentError, naming the field, if an object of `body` has a key twice.

    The body has been found valid. Values of the fields `ignored` of the body itself are not looked at.
    """
    repeated = False

    def note(pairs: list[tuple[str, Any]]) -> None:
        nonlocal repeated
        repeated = repeated or len({key for key, _ in pairs}) < len(pairs)

    short = _STRING.sub(_without_text, body) if len(body) > _LARGE else body
    json.loads(short, object_pairs_hook=note, **_TEXT)
    if repeated:
        _find(json.loads(short, object_pairs_hook=_Pairs, **_TEXT), ignored)


def _without_text(string: re.Match[bytes]) -> bytes:
    """A key as it is, and a text as an empty one."""
    return b'""' if string[1] is None else string[0]


def _find(body: _Pairs, ignored: Collection[str]) -> None:
    """Raise for the first key that stands twice, from the outside in."""
    waiting: list[tuple[str, Any]] = [("", body)]
    for path, value in waiting:  # which grows meanwhile
        if not isinstance(value, _Pairs):
            waiting += [(f"{path}[{index}]", entry) for index, entry in enumerate(value) if isinstance(entry, list)]
            continue
        seen: set[str] = set()
        for key, entry in value:
            field = f"{path}.{shortened(key)}".lstrip(".")
            if key in seen:
                raise InvalidArgumentError(f"{field} stands twice in its object", field=field)
            seen.add(key)
            if isinstance(entry, list) and not (value is body and key in ignored):
                waiting.append((field, entry))
