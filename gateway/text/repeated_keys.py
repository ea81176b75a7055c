"""Keys that an object of a body has twice, of which a JSON reader keeps one without a word."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Final

from gateway.core.limits import shortened
from slipstream.rpc.errors import InvalidArgumentError

_STRING: Final = rb'("(?:[^"\\]++|\\.)*+")\s*+(:)?'
_TOKEN: Final = re.compile(rb'[^"\[{\]}]*+(?:%s|([\[{])|([\]}])|\Z)' % _STRING, re.DOTALL)
_STEP: Final = re.compile(rb"%s|([\[{])|([\]}])|(,)" % _STRING, re.DOTALL)
_TEXT, _KEY, _OPEN, _CLOSE, _COMMA = 1, 2, 3, 4, 5
"""Groups: a string is a key where a colon follows it."""


def check_repeated_keys(body: bytes | bytearray, ignored: Collection[str] = ()) -> None:
    """InvalidArgumentError, naming the field, for the first key that an object of `body` has twice.

    The body has been found valid, and is read without being decoded: memory goes to the keys of the objects around one
    place alone. Values of the fields `ignored` of the body itself are not looked at.
    """
    around: list[set[str]] = []  # the keys so far of each object, or list, that has not ended
    is_ignored = False
    for match in _TOKEN.finditer(body):
        group = match.lastindex
        if group == _KEY:
            name = _decoded(match[_TEXT])
            if name in around[-1] and not (is_ignored and len(around) > 1):
                field = _field(body, match.start(_TEXT))
                raise InvalidArgumentError(f"{field} stands twice in its object", field=field)
            around[-1].add(name)
            if len(around) == 1:
                is_ignored = name in ignored
        elif group == _OPEN:
            around.append(set())
        elif group == _CLOSE:
            around.pop()


def _decoded(key: bytes) -> str:
    text: str = json.loads(key) if b"\\" in key else key[1:-1].decode()
    return text


def _field(body: bytes | bytearray, at: int) -> str:
    """The way to the key that begins at the byte `at`."""
    steps: list[str | int] = []
    for match in _STEP.finditer(body):
        group = match.lastindex
        if group == _KEY:
            steps[-1] = _decoded(match[_TEXT])
            if match.start() == at:
                break
        elif group == _OPEN:
            steps.append(0 if match[_OPEN] == b"[" else "")
        elif group == _CLOSE:
            steps.pop()
        elif group == _COMMA and isinstance(last := steps[-1], int):
            steps[-1] = last + 1
    return "".join(f"[{step}]" if isinstance(step, int) else f".{shortened(step)}" for step in steps).lstrip(".")
