"""Calls as a Python list: [get_weather(city="Paris"), get_time(zone="CET")], as Llama 3.2 and 4 write them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from enum import Enum, auto
from typing import Final

from gateway.output_parsers.base import CallParser
from gateway.output_parsers.json_values import skip_whitespace, well_formed
from gateway.output_parsers.markers import Markers

START, END = "<|python_start|>", "<|python_end|>"
_START, _END = Markers(START), Markers(END)
_NAME: Final = re.compile(r"[A-Za-z_][\w.-]*")
_STRUCTURE: Final = re.compile(r"""["'()\[\]{}]""")
_DEEPEST: Final = 32
_LONGEST: Final = 1 << 13
"""Characters of a call, which is decoded whole, in less than twenty milliseconds."""


class _At(Enum):
    BEGIN = auto()
    NAME = auto()
    CALL = auto()
    LIST_END = auto()
    BEHIND = auto()
    TEXT = auto()


class PythonicParser(CallParser):
    """An answer that begins with a list of calls of tools that the request has. All else is content.

    A call is given out once its bracket closes and its keywords are literals: no fragment of it is JSON before.
    """

    __slots__ = ("_at", "_before", "_depth", "_name", "_names", "_place", "_quote")

    def __init__(self, names: Collection[str]) -> None:
        super().__init__()
        self._names = frozenset(names)
        self._before = ""  # what has been read of a list without a call
        self._at = _At.BEGIN
        self._name = ""
        self._place = self._depth = 0
        self._quote = ""

    def _step(self) -> bool:
        match self._at:
            case _At.BEGIN:
                return self._begin()
            case _At.NAME:
                return self._read_name()
            case _At.CALL:
                return self._call()
            case _At.LIST_END:
                return self._close()
            case _At.BEHIND:
                return self._behind()
            case _At.TEXT:
                self._out.content(self._buffer)
                self._buffer = ""
                return False

    def _consume(self, end: int) -> None:
        if not self._out.calls:
            self._before += self._buffer[:end]
        self._buffer = self._buffer[end:]

    def _refuse(self) -> bool:
        """This is no call: what has been read of it is text."""
        if not self._out.calls:
            self._buffer, self._before = self._before + self._buffer, ""
        self._at = _At.TEXT
        return True

    def _begin(self) -> bool:
        place = skip_whitespace(self._buffer, 0)
        rest = self._buffer[place:]
        if rest.startswith(START):
            place = skip_whitespace(self._buffer, place + len(START))
            rest = self._buffer[place:]
        if not rest or _START.begins(rest):
            return False
        if rest[0] != "[":
            return self._refuse()
        self._consume(place + 1)
        self._at = _At.NAME
        return True

    def _read_name(self) -> bool:
        place = skip_whitespace(self._buffer, 0, "," if self._out.calls else "")
        match = _NAME.match(self._buffer, place)
        end = place if match is None else match.end()
        if end == len(self._buffer):
            return False
        if match is None and self._out.calls:
            self._at = _At.LIST_END
            return True
        if match is None or self._buffer[end] != "(" or match[0] not in self._names:
            return self._refuse()
        self._consume(place)
        self._name, self._place, self._depth, self._quote = match[0], end - place, 0, ""
        self._at = _At.CALL
        return True

    def _call(self) -> bool:
        end = self._find_end()
        if end < 0 and len(self._buffer) <= _LONGEST:
            return False
        arguments = _arguments(self._buffer[len(self._name) : end]) if 0 < end <= _LONGEST else None
        if arguments is None:
            return self._refuse()
        self._buffer = self._buffer[end:]
        self._out.begin_call(self._name)
        self._out.arguments(arguments)
        self._before, self._at = "", _At.NAME
        return True

    def _find_end(self) -> int:
        """The place behind the bracket that closes the call; -1 where it is not there yet, 0 where it is too deep."""
        text, place = self._buffer, self._place
        while place < len(text):
            if self._quote:
                char = text[place]
                if char == "\\":
                    if place + 1 == len(text):
                        break
                    place += 1
                elif char == self._quote:
                    self._quote = ""
                place += 1
                continue
            match = _STRUCTURE.search(text, place)
            if match is None:
                place = len(text)
                break
            place, char = match.end(), match[0]
            if char in "\"'":
                self._quote = char
            elif char in "([{":
                self._depth += 1
                if self._depth > _DEEPEST:
                    return 0
            else:
                self._depth -= 1
                if self._depth == 0:
                    return place
        self._place = place
        return -1

    def _close(self) -> bool:
        place = skip_whitespace(self._buffer, 0)
        if self._buffer[place] != "]":
            return self._refuse()
        self._buffer = self._buffer[place + 1 :]
        self._at = _At.BEHIND
        return True

    def _behind(self) -> bool:
        """Behind the list: perhaps its end marker, perhaps text."""
        rest = self._buffer[skip_whitespace(self._buffer, 0) :]
        if not rest or _END.begins(rest):
            return False
        self._buffer = self._buffer.replace(END, "", 1) if rest.startswith(END) else self._buffer
        self._at = _At.TEXT
        return True

    def _end(self) -> None:
        self._out.content(self._before + self._buffer)
        self._buffer = self._before = ""


def _arguments(source: str) -> str | None:
    """The keywords of a call, written "(a=1, b=[2])", as a JSON object; None where they are anything but literals."""
    try:
        call = ast.parse(f"f{source}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            return None
        values = {str(keyword.arg): ast.literal_eval(_named_constants(keyword.value)) for keyword in call.keywords}
        return well_formed(json.dumps(values, ensure_ascii=False, allow_nan=False))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _named_constants(value: ast.expr) -> ast.expr:
    """A value in which JSON's true, false and null are Python's."""
    return ast.fix_missing_locations(_Constants().visit(value))  # type: ignore[no-any-return]  # an expression again


class _Constants(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:  # ast's name for it
        names = {"true": True, "false": False, "null": None}
        return ast.Constant(names[node.id]) if node.id in names else node
