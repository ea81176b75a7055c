"""JSON text that comes in pieces: where a value ends."""

from __future__ import annotations

import json
import re
from typing import Final

from gateway.output_parsers.parts import WHITESPACE

_OUTSIDE: Final = re.compile(r'["{}\[\]]')
_INSIDE: Final = re.compile(r'["\\]')
_SCALAR_END: Final = re.compile(r"[,}\]\s]")
_SKIPPED: Final = {also: re.compile(f"[{WHITESPACE}{also}]*") for also in ("", ",", ";,")}


class ContainerEnd:
    """Finds the end of an object or list, bracket by bracket, in a text whose first character opens it."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def find(self, text: str, begin: int) -> int:
        """The place behind the value's last character, or -1 where it goes on behind `text`.

        `text` from `begin` on is what follows the text of the last call.
        """
        place, size = begin, len(text)
        while place < size:
            if self._escaped:
                self._escaped, place = False, place + 1
                continue
            match = (_INSIDE if self._in_string else _OUTSIDE).search(text, place)
            if match is None:
                return -1
            place, char = match.end(), match[0]
            if char == '"':
                self._in_string = not self._in_string
            elif char == "\\":
                self._escaped = True
            elif char in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return place
        return -1


class StringEnd:
    """Finds the end of a string in a text whose first character is its quote."""

    __slots__ = ("_begun", "_escaped")

    def __init__(self) -> None:
        self._begun = self._escaped = False

    def find(self, text: str, begin: int) -> int:
        """The place behind the string's last quote, or -1 where it goes on behind `text`.

        `text` from `begin` on is what follows the text of the last call.
        """
        place, size = begin, len(text)
        if place < size and not self._begun:
            self._begun, place = True, place + 1
        while place < size:
            if self._escaped:
                self._escaped, place = False, place + 1
                continue
            match = _INSIDE.search(text, place)
            if match is None:
                return -1
            place = match.end()
            if match[0] == '"':
                return place
            self._escaped = True
        return -1


class ScalarEnd:
    """Finds the end of a number or a word: the first character that can be part of neither."""

    __slots__ = ()

    def find(self, text: str, begin: int) -> int:
        """The place of that character, or -1 where there is none in `text`."""
        match = _SCALAR_END.search(text, begin)
        return -1 if match is None else match.start()


def string_value(text: str) -> str | None:
    """What a string in quotes says; None where it is malformed."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return well_formed(value) if isinstance(value, str) else None


def well_formed(text: str) -> str:
    """`text` as UTF-8 can write it: surrogates that are pairs joined, any other replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def skip_whitespace(text: str, begin: int, also: str = "") -> int:
    """The place of the first character from `begin` on that is no whitespace, nor one of `also`: "", "," or ";,"."""
    match = _SKIPPED[also].match(text, begin)
    assert match is not None  # as it may be empty
    return match.end()


def escaped(text: str) -> str:
    """`text` as it stands within the quotes of a JSON string. Texts may be escaped piece by piece."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def strict_json(text: str) -> str | None:
    """`text` if it is JSON that JSON can write anew, written so; None otherwise, as for numbers beyond a double."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        return well_formed(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (ValueError, RecursionError):
        return None


def _refuse(name: str) -> float:
    raise ValueError(name)
