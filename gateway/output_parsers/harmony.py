"""The channels of gpt-oss: <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...

Analysis is reasoning, the final channel and a commentary without recipient are content, and a message to
functions.NAME is a call. Format: https://cookbook.openai.com/articles/openai-harmony
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

from gateway.output_parsers.base import CallParser
from gateway.output_parsers.markers import Markers

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
MARKERS: Final = (START, CHANNEL, MESSAGE, CONSTRAIN, END, CALL, RETURN)
_BODY_ENDS: Final = Markers(END, CALL, RETURN, START, CHANNEL)
_HEAD_END: Final = Markers(MESSAGE)
_LONGEST_HEAD: Final = 512
_RECIPIENT: Final = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")


class _At(Enum):
    HEAD = auto()
    BODY = auto()
    TEXT = auto()


class _Body(Enum):
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()


class HarmonyParser(CallParser):
    """An answer in channels. A text that does not begin with the head of a message is content."""

    __slots__ = ("_at", "_body", "_heads")

    def __init__(self) -> None:
        super().__init__()
        self._at = _At.HEAD
        self._body = _Body.CONTENT
        self._heads = 0

    @property
    def in_reasoning(self) -> bool:
        """See OutputParser."""
        return self._at is _At.BODY and self._body is _Body.REASONING

    def _step(self) -> bool:
        match self._at:
            case _At.HEAD:
                return self._head()
            case _At.BODY:
                return self._read_body()
            case _At.TEXT:
                self._out.content(self._buffer)
                self._buffer = ""
                return False

    def _head(self) -> bool:
        found = _HEAD_END.find(self._buffer)
        if found is None or found.begin > _LONGEST_HEAD:
            if len(self._buffer) <= _LONGEST_HEAD + len(MESSAGE):
                return False
            self._at = _At.TEXT
            return True
        head, self._buffer = self._buffer[: found.begin], self._buffer[found.end :]
        recipient, channel = _RECIPIENT.search(head), _CHANNEL.search(head)
        if recipient is not None:
            self._body = _Body.CALL
            self._out.begin_call(recipient[1])
        elif channel is not None and channel[1] == "analysis":
            self._body = _Body.REASONING
        else:
            self._body = _Body.CONTENT
        self._heads += 1
        self._at = _At.BODY
        return True

    def _read_body(self) -> bool:
        found = _BODY_ENDS.find(self._buffer)
        end = len(self._buffer) - _BODY_ENDS.held(self._buffer) if found is None else found.begin
        self._give(self._buffer[:end])
        self._buffer = self._buffer[end:]
        if found is None:
            return False
        if found.marker in (END, CALL, RETURN):
            self._buffer = self._buffer[len(found.marker) :]
        self._at = _At.HEAD
        return True

    def _give(self, text: str) -> None:
        match self._body:
            case _Body.REASONING:
                self._out.reasoning(text)
            case _Body.CALL:
                self._out.arguments(text)
            case _Body.CONTENT:
                self._out.content(text)

    def _end(self) -> None:
        """A head without a message is no text, but where nothing came before it; nor is a part of a marker."""
        if self._at is _At.TEXT or (self._at is _At.BODY and self._body is not _Body.CALL):
            self._give(self._buffer)
        elif self._at is _At.HEAD and not self._heads:
            self._out.content(self._buffer)
        self._buffer = ""
