"""Calls written as a JSON object, or as a list of such objects, read as they come."""

from __future__ import annotations

from collections.abc import Callable

from gateway.output_parsers.held_space import HeldSpace
from gateway.output_parsers.json_call import JsonCall, State
from gateway.output_parsers.json_values import skip_whitespace
from gateway.output_parsers.parts import AnswerParts


class JsonCalls:
    """One object or one list. `rest` as of JsonCall: after a failure before any call had begun all of the text."""

    __slots__ = ("_accepts", "_call", "_held", "_listed", "_out", "_raw", "begun", "rest", "state")

    def __init__(self, out: AnswerParts, accepts: Callable[[str], bool]) -> None:
        self._out = out
        self._accepts = accepts
        self._raw = ""  # before the first call
        self._call: JsonCall | None = None
        self._held = HeldSpace()  # between calls
        self._listed = False
        self.begun = False
        self.rest = ""
        self.state = State.OPEN

    def push(self, text: str) -> State:
        """Take in more text."""
        if self.rest and self._held.hold(text):
            return self.state
        self.rest += self._held.take() + text
        while self.state is State.OPEN and self._step():
            pass
        if self.state is State.FAILED and not self.begun:
            self.rest = self._raw + self.rest
        return self.state

    def held(self) -> str:
        """The text of what has not become a call."""
        within = self._call.held() if self._call is not None else self.rest + self._held.take()
        return within if self.begun else self._raw + within

    def _step(self) -> bool:
        """Use up `rest` as far as can be decided."""
        if self._call is not None:
            return self._continue(self._call)
        place = skip_whitespace(self.rest, 0, "," if self.begun and self._listed else "")
        if place == len(self.rest):
            return False
        char = self.rest[place]
        if char == "{":
            self._consume(place)
            self._call = JsonCall(self._out, self._accepts)
            return True
        if char == "[" and not self._listed:
            self._listed = True
            self._consume(place + 1)
            return True
        if char == "]" and self.begun:
            self._consume(place + 1)
            self.state = State.DONE
        else:
            self.state = State.FAILED
        return False

    def _continue(self, call: JsonCall) -> bool:
        text, self.rest = self.rest, ""
        state = call.push(text)
        self.begun |= call.begun
        if state is State.OPEN:
            return False
        self._call, self.rest = None, call.rest
        if state is State.FAILED or not self._listed:
            self.state = state
            return False
        return True

    def _consume(self, end: int) -> None:
        if not self.begun:
            self._raw += self.rest[:end]
        self.rest = self.rest[end:]
