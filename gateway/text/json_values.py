"""JSON bodies of bounded cost: how many values a body may have, and long lists of token ids taken out of it.

A body of 4 MiB can hold 1.4 million `{}`, each of which takes 20 times its size once decoded. So a body's values are
counted before it is decoded. Lists of token ids, which alone may be long, are decoded apart, to four bytes an id.
"""

from __future__ import annotations

import re
import secrets
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.core.limits import shortened
from gateway.text.prepared import token_array
from slipstream.rpc.errors import InvalidArgumentError

KEYS_OF_AN_OBJECT: Final = 1024
"""Most keys of one JSON object, as many as logit_bias may have."""

_LEAST_LISTS: Final = 3072
_BYTES_A_LIST: Final = 384
"""A body may have a list or object for so many bytes of its size, and in any case some thousand."""
_VALUES_A_LIST: Final = 12
_LONG: Final = 1024
"""Token ids from which on a list is decoded apart."""
_PIECE: Final = 1 << 16
_NESTED: Final = (dict, list)
_DEPTH: Final = 201
"""Of lists and objects in one another, beyond which the decoder gives up."""
TOO_DEEP: Final = f"the body has more than {_DEPTH} lists and objects within one another"

_STRING: Final = rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)'
_LONG_LIST: Final = rb"\[[0-9, \t\r\n]{%d,}+\]" % (2 * _LONG - 1)
_LEADING_ZERO: Final = re.compile(rb"(?<![0-9])0[0-9]")
_COUNTED: Final = re.compile(rb"(%s)|(%s)|([\[{])|," % (_STRING, _LONG_LIST), re.DOTALL)
_VALUE: Final = re.compile(rf"({_STRING.decode()})|([\[{{])|,", re.DOTALL)
_NESTING: Final = re.compile(rb"(%s)|([\[{])|([\]}])|:" % _STRING, re.DOTALL)
_STAND_IN: Final = tuple(secrets.randbits(32) for _ in range(4))
"""What a list decoded apart begins with in the rest of the body, followed by its index. It cannot be guessed, and a
guess would reach no list but those of the same body."""
_STAND_IN_LENGTH: Final = 256
"""Entries of a stand-in, more than any other list of numbers may have."""


class MalformedBodyError(InvalidArgumentError):
    """The body is not JSON in UTF-8."""


@dataclass(frozen=True, slots=True)
class Values:
    """A body whose decoding costs a bounded multiple of its size: JSON, without long lists of token ids, and these."""

    json: bytes | bytearray
    lists: tuple[array[int], ...] = ()

    def ids(self, given: Sequence[int]) -> array[int]:
        """The token ids of a list as decoded: the list itself, or the one that it stands for."""
        head = len(_STAND_IN)
        if len(given) == _STAND_IN_LENGTH and tuple(given[:head]) == _STAND_IN and given[head] < len(self.lists):
            return self.lists[given[head]]
        return token_array(given)

    def whole(self, value: Any) -> Any:
        """A decoded value with its long lists of numbers in their places."""
        if not self.lists:
            return value
        if isinstance(value, dict):
            return {key: self.whole(entry) for key, entry in value.items()}
        if not isinstance(value, list):
            return value
        if len(value) == _STAND_IN_LENGTH and tuple(value[: len(_STAND_IN)]) == _STAND_IN:
            return list(self.ids(value))
        return [self.whole(entry) for entry in value]


def bounded(body: bytes | bytearray) -> Values:
    """Make `body` fit to be decoded.

    InvalidArgumentError, naming the field, where the body has too many values for its size. Syntax is not checked.
    """
    max_lists, max_values = _limits(len(body))
    if body.count(b"[") + body.count(b"{") <= max_lists and body.count(b",") <= _LONG:
        return Values(body)
    lists: list[array[int]] = []
    parts: list[bytes | bytearray] = []
    done = nested = values = 0
    for token in _COUNTED.finditer(body):
        kind = token.lastindex
        if kind == 1:
            continue
        if kind == 2:
            if (ids := _decoded(body, token.start() + 1, token.end() - 1)) is not None:
                parts += (body[done : token.start()], _stand_in(len(lists)))
                done = token.end()
                lists.append(ids)
            else:
                nested += 1
                values += body.count(b",", token.start(), token.end())
        elif kind == 3:
            nested += 1
        else:
            values += 1
        if nested > max_lists or values > max_values:
            raise _too_many(body, token.start(), max_lists, max_values)
    if not lists:
        return Values(body)
    return Values(b"".join((*parts, body[done:])), tuple(lists))


def check_texts(texts: Sequence[str], field: str) -> None:
    """InvalidArgumentError, naming `field`, if JSON in strings of a body has too many values for its size, together.

    Syntax is not checked.
    """
    max_lists, max_values = _limits(sum(map(len, texts)))
    if sum(text.count("[") + text.count("{") + text.count(",") for text in texts) <= max_lists:
        return
    nested = values = 0
    for text in texts:
        for token in _VALUE.finditer(text):
            nested += token.lastindex == 2
            values += token.lastindex is None
            if nested > max_lists or values > max_values:
                reason = (
                    f"{field}: arguments of calls make too many values: at their length they may have at most "
                    f"{max_lists} lists and objects and {max_values} other values"
                )
                raise InvalidArgumentError(reason, field=field)


def _limits(size: int) -> tuple[int, int]:
    """How many lists and objects JSON of so many bytes may have, and how many other values."""
    max_lists = max(_LEAST_LISTS, size // _BYTES_A_LIST)
    return max_lists, _VALUES_A_LIST * max_lists


def check_keys(body: Any) -> None:
    """InvalidArgumentError, naming the field of the body, if an object of a decoded body has too many keys."""
    waiting = [("", body)]
    while waiting:
        field, value = waiting.pop()
        if isinstance(value, dict):
            if len(value) > KEYS_OF_AN_OBJECT:
                reason = f"{field or 'the body'} may have at most {KEYS_OF_AN_OBJECT} entries, got {len(value)}"
                raise InvalidArgumentError(reason, field=field)
            waiting += [(field or shortened(key), entry) for key, entry in value.items() if isinstance(entry, _NESTED)]
        else:
            waiting += [(field, entry) for entry in value if isinstance(entry, _NESTED)]


def _decoded(body: bytes | bytearray, begin: int, end: int) -> array[int] | None:
    """The numbers between two places, piece by piece; None if one is no JSON or has more than 32 bits."""
    ids = token_array(())
    if _LEADING_ZERO.search(body, begin, end):
        return None
    while begin <= end:
        try:
            stop = end if end - begin <= _PIECE else body.rindex(b",", begin, begin + _PIECE)
            ids.extend(token_array(map(int, body[begin:stop].split(b","))))
        except (OverflowError, ValueError):
            return None
        begin = stop + 1
    return ids


def _stand_in(index: int) -> bytes:
    entries = (*_STAND_IN, index)
    return b"[%s]" % b",".join(b"%d" % entry for entry in (*entries, *[0] * (_STAND_IN_LENGTH - len(entries))))


def _too_many(body: bytes | bytearray, place: int, max_lists: int, max_values: int) -> InvalidArgumentError:
    field, depth = _where(body, place)
    if depth > _DEPTH:
        return MalformedBodyError(TOO_DEEP)
    return InvalidArgumentError(
        f"{field or 'the body'} makes too many values: a body of {len(body)} bytes may have at most {max_lists} lists "
        f"and objects and {max_values} other values, beside lists of token ids from 0 to {2**32 - 1}",
        field=field,
    )


def _where(body: bytes | bytearray, place: int) -> tuple[str, int]:
    """The key of the outermost object under which `place` lies, empty if there is none; and how deep `place` is."""
    depth, key, last = 0, b"", b""
    for token in _NESTING.finditer(body, 0, place):
        kind = token.lastindex
        if kind == 1:
            last = token[0]
        elif kind is None:
            key = last if depth == 1 else key
        else:
            depth += 1 if kind == 2 else -1
    return shortened(key[1:-1].decode("utf-8", "replace")), depth
