"""Calls as JSON between tags, as Hermes and Qwen write them: <tool_call>{"name": ..., "arguments": {}}</tool_call>."""

from __future__ import annotations

from enum import Enum, auto

from gateway.output_parsers.base import CallParser
from gateway.output_parsers.json_call import State
from gateway.output_parsers.json_calls import JsonCalls
from gateway.output_parsers.json_values import skip_whitespace
from gateway.output_parsers.markers import Markers

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class _At(Enum):
    TEXT = auto()
    CALL = auto()
    BEHIND = auto()


class TaggedJsonParser(CallParser):
    """Text around tags is content. A tag around anything that names no call is content too, tags included.

    What follows a call within its tag is dropped, another call apart; where no tag closes it, it is content.
    """

    __slots__ = ("_at", "_calls", "_close", "_either", "_open", "_opens", "_passed", "_tag")

    def __init__(self, opening: str = OPEN, closing: str = CLOSE) -> None:
        super().__init__()
        self._open, self._close = opening, closing
        self._opens = Markers(opening)
        self._either = Markers(opening, closing)
        self._at = _At.TEXT
        self._passed: list[str] = []  # text behind a call in which no tag begins
        self._tag = ""  # before the call under way, where it turns out to be none
        self._calls = JsonCalls(self._out, bool)

    def _step(self) -> bool:
        match self._at:
            case _At.TEXT:
                return self._text()
            case _At.CALL:
                return self._call()
            case _At.BEHIND:
                return self._behind()

    def _text(self) -> bool:
        found = self._opens.find(self._buffer)
        end = len(self._buffer) - self._opens.held(self._buffer) if found is None else found.begin
        self._out.content(self._buffer[:end])
        self._buffer = self._buffer[end if found is None else found.end :]
        if found is None:
            return False
        self._begin(self._open)
        return True

    def _begin(self, tag: str) -> None:
        self._calls, self._at, self._tag = JsonCalls(self._out, bool), _At.CALL, tag

    def _call(self) -> bool:
        if not self._buffer:
            return False
        text, self._buffer = self._buffer, ""
        state = self._calls.push(text)
        if state is State.OPEN:
            return False
        self._buffer = self._calls.rest
        if self._calls.begun:
            self._at = _At.BEHIND
        else:
            self._out.content(self._tag)
            self._at = _At.TEXT
        return True

    def _behind(self) -> bool:
        """Behind a call, its tag still open."""
        place = skip_whitespace(self._buffer, 0, ",")
        if not self._passed and self._buffer[place : place + 1] in ("{", "["):
            self._buffer = self._buffer[place:]
            self._begin("")
            return True
        found = self._either.find(self._buffer)
        if found is None:
            end = len(self._buffer) - self._either.held(self._buffer)
            if place < end:
                self._passed.append(self._buffer[:end])
                self._buffer = self._buffer[end:]
            return False
        if found.marker == self._open:
            self._out.content("".join(self._passed) + self._buffer[: found.begin])
            self._begin(self._open)
        else:
            self._at = _At.TEXT
        self._passed.clear()
        self._buffer = self._buffer[found.end :]
        return True

    def _end(self) -> None:
        if self._at is _At.CALL:
            self._out.content("" if self._calls.begun else self._tag + self._calls.held())
        else:
            self._out.content("".join(self._passed) + self._buffer)
        self._passed.clear()
        self._buffer = ""
