"""What an answer consists of, and the one place where whitespace around calls is settled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

WHITESPACE: Final = " \t\r\n"


class Reasoning(NamedTuple):
    """What the model thought before it answered."""

    text: str


class Content(NamedTuple):
    """Text of the answer itself."""

    text: str


class CallBegin(NamedTuple):
    """A call of a tool begins. `call` counts the calls of an answer from 0."""

    call: int
    name: str


class CallArguments(NamedTuple):
    """More of a call's arguments: a fragment of JSON text."""

    call: int
    text: str


AnswerPart = Reasoning | Content | CallBegin | CallArguments


def joined(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """The same parts, with texts of one kind that follow one another made one."""
    result: list[AnswerPart] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, CallBegin) or type(last) is not type(part):
            result.append(part)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments):
            if last.call == part.call:
                result[-1] = CallArguments(part.call, last.text + part.text)
            else:
                result.append(part)
        elif isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + part.text)
        elif isinstance(last, Content):
            result[-1] = Content(last.text + part.text)
    return result


class AnswerParts:
    """Gathers the parts of one answer.

    Whitespace that stands between content and a call, or among calls, belongs to neither and is dropped.
    """

    __slots__ = ("_has_content", "_parts", "_whitespace", "calls")

    def __init__(self) -> None:
        self._parts: list[AnswerPart] = []
        self._whitespace: list[str] = []  # which may turn out to stand before a call
        self._has_content = False
        self.calls = 0

    def take(self) -> list[AnswerPart]:
        """What has been gathered since the last time."""
        parts, self._parts = self._parts, []
        return parts

    def reasoning(self, text: str) -> None:
        """Add to the reasoning."""
        if text:
            self._parts.append(Reasoning(text))

    def content(self, text: str) -> None:
        """Add to the content."""
        if kept := text.rstrip(WHITESPACE):
            self._keep("".join(self._whitespace) + kept)
            self._whitespace = []
        if len(kept) < len(text):
            self._whitespace.append(text[len(kept) :])

    def _keep(self, kept: str) -> None:
        if self.calls and not self._has_content:
            kept = kept.lstrip(WHITESPACE)
        self._has_content = True
        self._parts.append(Content(kept))

    def begin_call(self, name: str) -> None:
        """Begin the next call."""
        self._whitespace = []
        self._parts.append(CallBegin(self.calls, name))
        self.calls += 1

    def arguments(self, text: str) -> None:
        """Add to the arguments of the call that has begun last."""
        if text:
            self._parts.append(CallArguments(self.calls - 1, text))

    def finish(self) -> None:
        """Nothing more comes."""
        if self._whitespace and not self.calls:
            self._parts.append(Content("".join(self._whitespace)))
        self._whitespace = []
