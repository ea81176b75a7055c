"""The interface of output parsers, and what those of calls have in common."""

from __future__ import annotations

from typing import Protocol

from gateway.output_parsers.held_space import HeldSpace
from gateway.output_parsers.parts import AnswerPart, AnswerParts


class OutputParser(Protocol):
    """Parses one answer. The parts of all `push` and of `finish`, joined, do not depend on how the text was cut."""

    @property
    def in_reasoning(self) -> bool:
        """Whether the text so far ends within the model's reasoning."""
        ...

    def push(self, text: str) -> list[AnswerPart]:
        """Take in more text."""
        ...

    def finish(self) -> list[AnswerPart]:
        """What was held back, when no more text comes."""
        ...


class CallParser:
    """Base of parsers that take text to its end: a buffer, and steps that consume it as far as they can decide.

    White space behind a buffer that is not empty is held back until text follows it.
    """

    __slots__ = ("_buffer", "_held", "_out")

    def __init__(self) -> None:
        self._buffer = ""
        self._held = HeldSpace()
        self._out = AnswerParts()

    @property
    def in_reasoning(self) -> bool:
        """See OutputParser."""
        return False

    def push(self, text: str) -> list[AnswerPart]:
        """See OutputParser."""
        if text and not (self._buffer and self._held.hold(text)):
            self._read(self._held.take() + text)
        return self._out.take()

    def finish(self) -> list[AnswerPart]:
        """See OutputParser."""
        if held := self._held.take():
            self._read(held)
        self._end()
        self._out.finish()
        return self._out.take()

    def _read(self, text: str) -> None:
        self._buffer += text
        while self._step():
            pass

    def _step(self) -> bool:
        """Decide on a part of the buffer; False where that takes more text."""
        raise NotImplementedError

    def _end(self) -> None:
        """Give out what is held back."""
        raise NotImplementedError


class PlainParser(CallParser):
    """An answer without calls: all of it is content."""

    __slots__ = ()

    def _step(self) -> bool:
        self._out.content(self._buffer)
        self._buffer = ""
        return False

    def _end(self) -> None:
        pass
