"""Calls behind [TOOL_CALLS], as Mistral's models write them.

The older form is a list, [TOOL_CALLS][{"name": ..., "arguments": {...}}]; the newer one repeats the marker:
[TOOL_CALLS]NAME[ARGS]{...}, perhaps with [CALL_ID]ID before the arguments, and in between [TOOL_CALLS]NAME{...}.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from gateway.output_parsers.base import CallParser
from gateway.output_parsers.json_call import State
from gateway.output_parsers.json_calls import JsonCalls
from gateway.output_parsers.json_values import ContainerEnd, skip_whitespace
from gateway.output_parsers.markers import Markers

MARKER: Final = "[TOOL_CALLS]"
CALL_ID, ARGUMENTS = "[CALL_ID]", "[ARGS]"
_MARKERS: Final = Markers(MARKER)
_HEAD: Final = re.compile(
    r"\s*([A-Za-z0-9_.:-]{1,256})\s*(?:\[CALL_ID\]\s*[A-Za-z0-9_.:-]{0,256}\s*)?(?:\[ARGS\])?\s*(?=\{)"
)
_LONGEST_HEAD: Final = 1024


class _At(Enum):
    TEXT = auto()
    HEAD = auto()
    LIST = auto()
    ARGUMENTS = auto()


class MistralParser(CallParser):
    """Text before the marker is content, and so is a marker with anything but a call behind it."""

    __slots__ = ("_at", "_calls", "_container")

    def __init__(self) -> None:
        super().__init__()
        self._at = _At.TEXT
        self._calls = JsonCalls(self._out, bool)
        self._container = ContainerEnd()

    def _step(self) -> bool:
        match self._at:
            case _At.TEXT:
                return self._text()
            case _At.HEAD:
                return self._head()
            case _At.LIST:
                return self._list()
            case _At.ARGUMENTS:
                return self._arguments()

    def _text(self) -> bool:
        found = _MARKERS.find(self._buffer)
        end = len(self._buffer) - _MARKERS.held(self._buffer) if found is None else found.begin
        self._out.content(self._buffer[:end])
        self._buffer = self._buffer[end if found is None else found.end :]
        if found is None:
            return False
        self._at = _At.HEAD
        return True

    def _refuse(self) -> bool:
        self._out.content(MARKER)
        self._at = _At.TEXT
        return True

    def _head(self) -> bool:
        place = skip_whitespace(self._buffer, 0)
        if place == len(self._buffer):
            return False
        if self._buffer[place] in "[{":
            self._calls, self._at = JsonCalls(self._out, bool), _At.LIST
            return True
        brace = self._buffer.find("{", 0, _LONGEST_HEAD)
        if brace < 0:
            return len(self._buffer) >= _LONGEST_HEAD and self._refuse()
        match = _HEAD.match(self._buffer)
        if match is None:
            return self._refuse()
        self._out.begin_call(match[1])
        self._buffer, self._container, self._at = self._buffer[match.end() :], ContainerEnd(), _At.ARGUMENTS
        return True

    def _list(self) -> bool:
        if not self._buffer:
            return False
        text, self._buffer = self._buffer, ""
        state = self._calls.push(text)
        if state is State.OPEN:
            return False
        self._buffer, self._at = self._calls.rest, _At.TEXT
        if state is State.FAILED and not self._calls.begun:
            self._out.content(MARKER)
        return True

    def _arguments(self) -> bool:
        if not self._buffer:
            return False
        end = self._container.find(self._buffer, 0)
        stop = len(self._buffer) if end < 0 else end
        self._out.arguments(self._buffer[:stop])
        self._buffer = self._buffer[stop:]
        if end < 0:
            return False
        self._at = _At.TEXT
        return True

    def _end(self) -> None:
        if self._at is _At.HEAD:
            self._out.content(MARKER + self._buffer)
        elif self._at is _At.LIST:
            self._out.content(self._calls.held() if self._calls.begun else MARKER + self._calls.held())
        else:
            self._out.content(self._buffer)
        self._buffer = ""
