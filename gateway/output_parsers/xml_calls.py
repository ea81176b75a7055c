"""Calls as Qwen3-Coder writes them: <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>.

Values are no JSON. A parameter that the tool's schema has as a string is taken as written; any other as the JSON that
it reads as, and as a string where it reads as none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from gateway.output_parsers.base import CallParser
from gateway.output_parsers.json_values import escaped, skip_whitespace, strict_json
from gateway.output_parsers.markers import Markers

TAG: Final = "<tool_call>"
_FUNCTION, _PARAMETER = "<function=", "<parameter="
_PARAMETER_END, _FUNCTION_END, _TAG_END = "</parameter>", "</function>", "</tool_call>"
_OPENINGS: Final = Markers(TAG, _FUNCTION)
_IN_TAG: Final = Markers(_FUNCTION)
_IN_FUNCTION: Final = Markers(_PARAMETER, _FUNCTION_END, _TAG_END)
_IN_VALUE: Final = Markers(_PARAMETER_END, f"\n{_PARAMETER}", f"\n{_FUNCTION_END}")
_BEHIND: Final = Markers(_TAG_END, TAG, _FUNCTION)
_NAME: Final = re.compile(r"[^<>\n]{1,256}>")
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}


class _At(Enum):
    TEXT = auto()
    TAG = auto()
    FUNCTION = auto()
    PARAMETERS = auto()
    KEY = auto()
    VALUE = auto()
    BEHIND = auto()


class XmlCallParser(CallParser):
    """Text around tags is content, and so is a tag around anything but a function.

    `strings` names, by tool, the parameters that are strings. A parameter is given out as it comes where it is one,
    else once it is whole. End tags that models forget are taken as read.
    """

    __slots__ = ("_at", "_before", "_first", "_name", "_pieces", "_streams", "_strings", "_written")

    def __init__(self, strings: Mapping[str, frozenset[str]]) -> None:
        super().__init__()
        self._strings = strings
        self._at = _At.TEXT
        self._before = ""  # of the call under way, where it turns out to be none
        self._name = ""
        self._streams = False  # whether the value under way is a string
        self._pieces: list[str] = []  # of a value that is given out once it is whole
        self._first = True  # no parameter of the call yet
        self._written = False  # something of the value under way

    def _step(self) -> bool:
        match self._at:
            case _At.TEXT:
                return self._text()
            case _At.TAG:
                return self._tag()
            case _At.FUNCTION:
                return self._function()
            case _At.PARAMETERS:
                return self._parameters()
            case _At.KEY:
                return self._key()
            case _At.VALUE:
                return self._value()
            case _At.BEHIND:
                return self._behind()

    def _text(self) -> bool:
        found = _OPENINGS.find(self._buffer)
        end = len(self._buffer) - _OPENINGS.held(self._buffer) if found is None else found.begin
        self._out.content(self._buffer[:end])
        self._buffer = self._buffer[end if found is None else found.end :]
        if found is None:
            return False
        self._before, self._at = found.marker, _At.TAG if found.marker == TAG else _At.FUNCTION
        return True

    def _refuse(self) -> bool:
        self._out.content(self._before)
        self._at = _At.TEXT
        return True

    def _tag(self) -> bool:
        place = skip_whitespace(self._buffer, 0)
        rest = self._buffer[place:]
        if not rest or _IN_TAG.begins(rest):
            return False
        if not rest.startswith(_FUNCTION):
            return self._refuse()
        self._before += self._buffer[:place] + _FUNCTION
        self._buffer, self._at = rest[len(_FUNCTION) :], _At.FUNCTION
        return True

    def _function(self) -> bool:
        name = self._read_name()
        if not name:
            return self._refuse() if name is None else False
        self._name, self._first, self._at = name, True, _At.PARAMETERS
        self._out.begin_call(name)
        return True

    def _read_name(self) -> str | None:
        """A name and its bracket, consumed; empty where it is not whole, None where it is none."""
        match = _NAME.match(self._buffer)
        if match is not None:
            self._buffer = self._buffer[match.end() :]
            return match[0][:-1].strip() or None
        bad = re.match(r"[^<>\n]{257}|[^<>\n]{0,256}[<\n]|>", self._buffer)
        return "" if bad is None else None

    def _parameters(self) -> bool:
        """Between parameters; what is none is dropped."""
        found = _IN_FUNCTION.find(self._buffer)
        if found is None:
            self._buffer = self._buffer[len(self._buffer) - _IN_FUNCTION.held(self._buffer) :]
            return False
        self._buffer = self._buffer[found.end :]
        if found.marker == _PARAMETER:
            self._at = _At.KEY
            return True
        self._close_call()
        self._at = _At.BEHIND if found.marker == _FUNCTION_END else _At.TEXT
        return True

    def _close_call(self) -> None:
        self._out.arguments("{}" if self._first else "}")

    def _key(self) -> bool:
        key = self._read_name()
        if not key:
            self._at = _At.PARAMETERS if key is None else self._at
            return key is None
        self._out.arguments(("{" if self._first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        self._first, self._written, self._at = False, False, _At.VALUE
        self._streams = key in self._strings.get(self._name, ())
        if self._streams:
            self._out.arguments('"')
        return True

    def _value(self) -> bool:
        """A value, whose first and last line breaks are the form's."""
        if not self._buffer:
            return False
        if not self._written and self._streams:
            self._buffer, self._written = self._buffer.removeprefix("\n"), True
        found = _IN_VALUE.find(self._buffer)
        if found is None:
            self._use(len(self._buffer) - max(_IN_VALUE.held(self._buffer), self._buffer.endswith("\n")))
            return False
        if self._streams:
            self._out.arguments(escaped(self._buffer[: found.begin].removesuffix("\n")) + '"')
        else:
            value = "".join(self._pieces) + self._buffer[: found.begin]
            self._pieces.clear()
            self._out.arguments(_as_json(value.removeprefix("\n").removesuffix("\n")))
        self._buffer = self._buffer[found.end :] if found.marker == _PARAMETER_END else self._buffer[found.begin :]
        self._at = _At.PARAMETERS
        return True

    def _use(self, end: int) -> None:
        """Take text of a value, which is not read again."""
        if self._buffer[:end].endswith("\n"):  # before what may become an end tag
            end -= 1
        if self._streams:
            self._out.arguments(escaped(self._buffer[:end]))
        else:
            self._pieces.append(self._buffer[:end])
        self._buffer = self._buffer[end:]

    def _behind(self) -> bool:
        """Behind a function, its tag perhaps still open."""
        place = skip_whitespace(self._buffer, 0)
        rest = self._buffer[place:]
        if not rest or _BEHIND.begins(rest):
            return False
        if rest.startswith(_TAG_END):
            self._buffer = rest[len(_TAG_END) :]
        self._at = _At.TEXT
        return True

    def _end(self) -> None:
        """A call that was cut off is left as it is; what may have begun an end tag is no part of its value."""
        if self._at in (_At.TAG, _At.FUNCTION):
            self._out.content(self._before + self._buffer)
        elif self._at in (_At.TEXT, _At.BEHIND):
            self._out.content(self._buffer)
        self._buffer = ""


def _as_json(value: str) -> str:
    """A value that need not be a string."""
    text = value.strip()
    written = strict_json(_PYTHON.get(text, text))
    return json.dumps(value, ensure_ascii=False) if written is None else written
