"""Calls as bare JSON: {"name": ..., "parameters": {...}}, as Llama 3 writes them, perhaps behind <|python_tag|>.

An answer in JSON looks the same. So only the name of a tool that the request has makes a call of it.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from gateway.output_parsers.base import CallParser
from gateway.output_parsers.json_call import State
from gateway.output_parsers.json_calls import JsonCalls
from gateway.output_parsers.json_values import skip_whitespace
from gateway.output_parsers.markers import Markers

PYTHON_TAG: Final = "<|python_tag|>"
_SEPARATORS: Final = ";,"


class _At(Enum):
    BEGIN = auto()
    TEXT = auto()
    CALL = auto()
    BEHIND = auto()


class BareJsonParser(CallParser):
    """An answer that begins with a call, or has one behind the tag. All else is content.

    Several calls are separated by semicolons, or stand in a list.
    """

    __slots__ = ("_at", "_before", "_calls", "_names", "_tag")

    def __init__(self, names: Collection[str], tag: str = PYTHON_TAG) -> None:
        super().__init__()
        self._names = frozenset(names)
        self._tag = Markers(tag)
        self._at = _At.BEGIN
        self._before = ""  # of the call under way, where it turns out to be none
        self._calls = JsonCalls(self._out, self._names.__contains__)

    def _step(self) -> bool:
        match self._at:
            case _At.BEGIN:
                return self._begin()
            case _At.TEXT:
                return self._text()
            case _At.CALL:
                return self._call()
            case _At.BEHIND:
                return self._behind()

    def _begin(self) -> bool:
        place = skip_whitespace(self._buffer, 0)
        rest = self._buffer[place:]
        if not rest or self._tag.begins(rest):
            return False
        if rest[0] in "{[":
            self._before, self._buffer = self._buffer[:place], rest
            self._start()
        else:
            self._at = _At.TEXT
        return True

    def _start(self) -> None:
        self._calls, self._at = JsonCalls(self._out, self._names.__contains__), _At.CALL

    def _text(self) -> bool:
        found = self._tag.find(self._buffer)
        end = len(self._buffer) - self._tag.held(self._buffer) if found is None else found.begin
        self._out.content(self._buffer[:end])
        self._buffer = self._buffer[end if found is None else found.end :]
        if found is None:
            return False
        self._before = found.marker
        self._start()
        return True

    def _call(self) -> bool:
        if not self._buffer:
            return False
        text, self._buffer = self._buffer, ""
        state = self._calls.push(text)
        if state is State.OPEN:
            return False
        self._buffer = self._calls.rest
        if state is State.FAILED:
            if not self._calls.begun:
                self._out.content(self._before)
            self._at = _At.TEXT
        else:
            self._at = _At.BEHIND
        return True

    def _behind(self) -> bool:
        """Behind a call: another one, or text."""
        place = skip_whitespace(self._buffer, 0, _SEPARATORS)
        rest = self._buffer[place:]
        if not rest or self._tag.begins(rest):
            return False
        if rest[0] in "{[":
            self._before, self._buffer = self._buffer[:place], rest
            self._start()
        else:
            self._at = _At.TEXT
        return True

    def _end(self) -> None:
        if self._at is _At.CALL:
            self._out.content(self._calls.held() if self._calls.begun else self._before + self._calls.held())
        else:
            behind = skip_whitespace(self._buffer, 0, _SEPARATORS) if self._at is _At.BEHIND else 0
            self._out.content(self._buffer[behind:])
        self._buffer = ""
