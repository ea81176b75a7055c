"""A call written as a JSON object: {"name": ..., "arguments": {...}}, read as it comes."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from gateway.output_parsers.json_values import ContainerEnd, ScalarEnd, StringEnd, skip_whitespace, string_value
from gateway.output_parsers.parts import AnswerParts

_ARGUMENTS: Final = ("arguments", "parameters")
_MEANT: Final = (*_ARGUMENTS, "function", "name")


class State(Enum):
    """How far a call is."""

    OPEN = auto()
    DONE = auto()
    FAILED = auto()


class _Within(Enum):
    BEGIN = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    CONTAINER = auto()
    STRING = auto()
    SCALAR = auto()
    NEXT = auto()


class JsonCall:
    """One call. Its name is given out once it is complete and accepted, its arguments from then on as they are written.

    Arguments written as a JSON string are what that string says; a call without any has `{}`. Once DONE or FAILED,
    `rest` is the text that has not been used: after a failure before the call had `begun` all of it.
    """

    __slots__ = ("_accepts", "_arguments", "_buffer", "_early", "_end", "_is_key", "_key", "_nested", "_out",
                 "_pieces", "_place", "_raw", "_within", "begun", "rest", "state")  # fmt: skip

    def __init__(self, out: AnswerParts, accepts: Callable[[str], bool]) -> None:
        self._out = out
        self._accepts = accepts
        self._raw: list[str] = []
        self._buffer = ""
        self._place = 0
        self._within = _Within.BEGIN
        self._key = ""  # of a value that means something
        self._nested = 0  # objects around that hold the call under "function"
        self._end: ContainerEnd | StringEnd | ScalarEnd = ContainerEnd()  # of the value under way
        self._pieces: list[str] = []  # of the string or scalar under way, which is of use once it is whole
        self._is_key = False  # whether that is a key
        self._early: list[str] = []  # arguments written before the name
        self._arguments = False
        self.begun = False
        self.rest = ""
        self.state = State.OPEN

    def push(self, text: str) -> State:
        """Take in more text."""
        if not self.begun:
            self._raw.append(text)
        self._buffer = self._buffer[self._place :] + text
        self._place = 0
        while self.state is State.OPEN and self._step():
            pass
        if self.state is not State.OPEN:
            self.rest = self._buffer[self._place :] if self.begun else "".join(self._raw)
        return self.state

    def held(self) -> str:
        """The text of a call that has not begun."""
        return "" if self.begun else "".join(self._raw)

    def _step(self) -> bool:
        match self._within:
            case _Within.CONTAINER:
                return self._continue()
            case _Within.STRING:
                return self._string()
            case _Within.SCALAR:
                return self._scalar()
            case _Within.VALUE:
                return self._value()
            case _Within.BEGIN:
                return self._expect("{", _Within.KEY)
            case _Within.COLON:
                return self._expect(":", _Within.VALUE)
            case _Within.KEY:
                return self._read_key()
            case _Within.NEXT:
                return self._next()

    def _peek(self) -> str:
        """The next character that is no whitespace, and the place moves to it; empty where there is none yet."""
        self._place = skip_whitespace(self._buffer, self._place)
        return self._buffer[self._place : self._place + 1]

    def _fail(self) -> bool:
        self.state = State.FAILED
        return False

    def _expect(self, char: str, then: _Within) -> bool:
        found = self._peek()
        if found == char:
            self._place, self._within = self._place + 1, then
            return True
        return self._fail() if found else False

    def _begin(self, within: _Within, end: ContainerEnd | StringEnd | ScalarEnd, *, is_key: bool = False) -> bool:
        """A value, or a key, begins here."""
        self._within, self._end, self._is_key = within, end, is_key
        return True

    def _whole(self) -> str | None:
        """The value under way; None where it is not whole. What there is of it is not read again."""
        end = self._end.find(self._buffer, self._place)
        stop = len(self._buffer) if end < 0 else end
        self._pieces.append(self._buffer[self._place : stop])
        self._place = stop
        if end < 0:
            return None
        whole = "".join(self._pieces)
        self._pieces.clear()
        return whole

    def _string(self) -> bool:
        written = self._whole()
        if written is None:
            return False
        value = string_value(written)
        if value is None:
            self._buffer, self._place = written + self._buffer[self._place :], 0
            return self._fail()
        if self._is_key:
            self._key, self._within = value if value in _MEANT else "", _Within.COLON
            return True
        self._within = _Within.NEXT
        return self._named(value) if self._key == "name" else self._argue(value or "{}", whole=True)

    def _scalar(self) -> bool:
        value = self._whole()
        if value is None:
            return False
        if self._key == "name" or not value:
            self._buffer, self._place = value + self._buffer[self._place :], 0
            return self._fail()
        self._within = _Within.NEXT
        return self._argue("{}" if value == "null" else value, whole=True)

    def _read_key(self) -> bool:
        found = self._peek()
        if found == "}":
            return self._close()
        if found != '"':
            return self._fail() if found else False
        return self._begin(_Within.STRING, StringEnd(), is_key=True)

    def _next(self) -> bool:
        found = self._peek()
        if found == "}":
            return self._close()
        return self._expect(",", _Within.KEY)

    def _close(self) -> bool:
        self._place += 1
        if self._nested:
            self._nested, self._within = self._nested - 1, _Within.NEXT
            return True
        if not self.begun:
            return self._fail()
        if not self._arguments:
            self._out.arguments("{}")
        self.state = State.DONE
        return False

    def _value(self) -> bool:
        found = self._peek()
        if not found:
            return False
        if self._key == "function" and found == "{" and not self._nested:
            self._place, self._nested, self._within = self._place + 1, self._nested + 1, _Within.KEY
            return True
        if found in "{[":
            if self._key == "name":
                return self._fail()
            return self._begin(_Within.CONTAINER, ContainerEnd())
        if found == '"':
            return self._begin(_Within.STRING, StringEnd())
        return self._begin(_Within.SCALAR, ScalarEnd())

    def _continue(self) -> bool:
        end = self._end.find(self._buffer, self._place)
        stop = len(self._buffer) if end < 0 else end
        text, self._place = self._buffer[self._place : stop], stop
        self._argue(text, whole=end >= 0)
        if end < 0:
            return False
        self._within = _Within.NEXT
        return True

    def _argue(self, text: str, *, whole: bool) -> bool:
        """Take text of a value, which is the arguments' or that of a key without meaning."""
        if self._key in _ARGUMENTS and not self._arguments:  # a second value of the same meaning is none
            if self.begun:
                self._out.arguments(text)
            else:
                self._early.append(text)
            self._arguments = whole
        return True

    def _named(self, name: str) -> bool:
        if self.begun:
            return True
        if not self._accepts(name):
            return self._fail()
        self.begun = True
        self._out.begin_call(name)
        self._out.arguments("".join(self._early))
        self._raw, self._early = [], []
        return True
