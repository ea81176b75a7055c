"""Reasoning between tags, <think>...</think>, before an answer that another parser reads."""

from __future__ import annotations

from enum import Enum, auto

from gateway.output_parsers.base import OutputParser
from gateway.output_parsers.held_space import HeldSpace
from gateway.output_parsers.json_values import skip_whitespace
from gateway.output_parsers.markers import Markers
from gateway.output_parsers.parts import AnswerPart, Reasoning

_LINE_BREAKS = "\r\n"


class _At(Enum):
    BEGIN = auto()
    OPENED = auto()
    REASONING = auto()
    CLOSED = auto()
    ANSWER = auto()


class ReasoningParser:
    """Splits reasoning off, and gives the rest to `answer`. Line breaks next to either tag belong to the form.

    `inside`: the prompt ends within the reasoning, or the model leaves its first tag out.
    """

    __slots__ = ("_answer", "_at", "_buffer", "_close", "_held", "_inside", "_open", "_opens")

    def __init__(self, answer: OutputParser, opening: str, closing: str, *, inside: bool) -> None:
        self._answer = answer
        self._open, self._opens, self._close = opening, Markers(opening), Markers(closing)
        self._inside = inside
        self._at = _At.BEGIN
        self._buffer = ""
        self._held = HeldSpace()

    @property
    def in_reasoning(self) -> bool:
        """See OutputParser."""
        if self._at is _At.BEGIN:
            return self._inside
        return self._at in (_At.OPENED, _At.REASONING)

    def push(self, text: str) -> list[AnswerPart]:
        """See OutputParser."""
        if self._at is _At.ANSWER:
            return self._answer.push(text)
        if self._buffer and self._held.hold(text):
            return []
        return self._read(self._held.take() + text)

    def finish(self) -> list[AnswerPart]:
        """See OutputParser."""
        parts = self._read(self._held.take())
        rest, self._buffer = self._buffer, ""
        if self.in_reasoning:
            if rest := rest.strip(_LINE_BREAKS) if self._at is _At.OPENED else rest:
                parts.append(Reasoning(rest))
        elif self._at is _At.BEGIN:
            parts += self._answer.push(rest)
        return parts + self._answer.finish()

    def _read(self, text: str) -> list[AnswerPart]:
        self._buffer += text
        parts: list[AnswerPart] = []
        while self._step(parts):
            pass
        return parts

    def _step(self, parts: list[AnswerPart]) -> bool:
        match self._at:
            case _At.BEGIN:
                return self._begin()
            case _At.OPENED:
                self._buffer = self._buffer.lstrip(_LINE_BREAKS)
                if not self._buffer:
                    return False
                self._at = _At.REASONING
                return True
            case _At.REASONING:
                return self._reason(parts)
            case _At.CLOSED:
                self._buffer = self._buffer.lstrip(_LINE_BREAKS)
                if not self._buffer:
                    return False
                self._at = _At.ANSWER
                return True
            case _At.ANSWER:
                text, self._buffer = self._buffer, ""
                parts += self._answer.push(text)
                return False

    def _begin(self) -> bool:
        rest = self._buffer[skip_whitespace(self._buffer, 0) :]
        if not rest or self._opens.begins(rest):
            return False
        if rest.startswith(self._open):
            self._buffer, self._at = rest[len(self._open) :], _At.OPENED
        else:
            self._at = _At.OPENED if self._inside else _At.ANSWER
        return True

    def _reason(self, parts: list[AnswerPart]) -> bool:
        found = self._close.find(self._buffer)
        if found is None:
            end = len(self._buffer) - self._close.held(self._buffer)
            end = len(self._buffer[:end].rstrip(_LINE_BREAKS))
        else:
            end = len(self._buffer[: found.begin].rstrip(_LINE_BREAKS))
        if end:
            parts.append(Reasoning(self._buffer[:end]))
        self._buffer = self._buffer[end if found is None else found.end :]
        if found is None:
            return False
        self._at = _At.CLOSED
        return True
