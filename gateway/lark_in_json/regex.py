"""The reader of regular expressions, in the syntax of Rust's regex crate, which llguidance compiles."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.nodes import EMPTY, Choice, Letters, Node, Repeat, Sequence, Text

MOST_NESTED: Final = 60
"""Groups, or brackets of a class, around a place."""
_GROUP: Final = re.compile(
    r"\?(?:P?<[A-Za-z_][A-Za-z0-9_.\[\]]*>|(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]+))?(?P<end>[:)]))"
)
_CODE: Final = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[xuU]\{([0-9a-fA-F]{1,8})\}")
_KIND: Final = re.compile(r"[dDsSwW]|[pP](?:[A-Za-z]|\{[^{}]{1,64}\})")
_COUNT: Final = re.compile(r"\{([0-9]{1,6})(?:(,)([0-9]{1,6})?)?\}")
_NAMED_CLASS: Final = re.compile(r"\[:\^?[a-z]+:\]")
_SIGNS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_LOOKS: Final = "bBAzZG<>"


@dataclass(frozen=True, slots=True)
class _Flags:
    """Letters of either case, and a dot that is a new line too."""

    ignore_case: bool = False
    dot_all: bool = False


def read_regex(text: str, flags: str) -> Node:
    """What an expression matches, in strings, letters, sequences, choices and repetitions.

    LarkError for what is none, and for what is none of these: anchors, look-around, lazy repetition, other flags.
    """
    return _Reader(text).read(_flagged(_Flags(), flags, "", text))


def _flagged(flags: _Flags, on: str, off: str, text: str) -> _Flags:
    unknown = (set(on) - set("imsu")) | (set(off) - set("ims"))
    if unknown:
        raise _error(text, f"the flag {min(unknown)!r} is not supported")
    return replace(
        flags,
        ignore_case=("i" in on or flags.ignore_case) and "i" not in off,
        dot_all=("s" in on or flags.dot_all) and "s" not in off,
    )


def _error(text: str, reason: str) -> LarkError:
    shown = text if len(text) <= 40 else f"{text[:40]}..."
    return LarkError(f"in /{shown}/ {reason}")


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._nested = 0

    def read(self, flags: _Flags) -> Node:
        node = self._choice(flags)
        if self._place < len(self._text):
            raise self._error("a bracket closes that none has opened")
        return node

    def _error(self, reason: str) -> LarkError:
        return _error(self._text, reason)

    def _choice(self, flags: _Flags) -> Node:
        self._nested += 1
        if self._nested > MOST_NESTED:
            raise self._error(f"groups are nested more than {MOST_NESTED} deep")
        options: list[Node] = []
        parts: list[Node] = []
        while self._place < len(self._text) and self._text[self._place] != ")":
            if self._text[self._place] == "|":
                self._place += 1
                options.append(_joined(parts))
                parts = []
                continue
            part = self._part(flags)
            if isinstance(part, _Flags):
                flags = part
            else:
                parts.append(self._repeated(part))
        options.append(_joined(parts))
        self._nested -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _repeated(self, part: Node) -> Node:
        while True:
            sign = self._text[self._place : self._place + 1]
            if sign and sign in "*+?":
                self._place += 1
                part = Repeat(part, int(sign == "+"), 1 if sign == "?" else None)
            elif sign == "{":
                part = self._counted(part)
            else:
                return part
            if self._text.startswith("?", self._place):
                raise self._error("a lazy repetition is not supported")

    def _counted(self, part: Node) -> Node:
        match = _COUNT.match(self._text, self._place)
        if match is None:
            raise self._error("a repetition is none")
        self._place = match.end()
        least = int(match[1])
        most = least if match[2] is None else None if match[3] is None else int(match[3])
        if most is not None and most < least:
            raise self._error(f"a repetition from {least} to {most} times is none")
        return EMPTY if most == 0 else Repeat(part, least, most)

    def _part(self, flags: _Flags) -> Node | _Flags:
        letter = self._text[self._place]
        if letter == "(":
            return self._group(flags)
        if letter == "[":
            begin = self._place
            self._pass_class(0)
            return Letters(self._text[begin : self._place], flags.ignore_case)
        self._place += 1
        if letter == ".":
            return Letters(r"[\x{0}-\x{10FFFF}]" if flags.dot_all else r"[^\n]")
        if letter in "^$":
            raise self._error(f"the anchor {letter!r} is not supported; terminals are matched whole")
        if letter in "*+?{":
            raise self._error(f"{letter!r} repeats nothing")
        if letter == "\\":
            return self._escape(flags)
        return Text(letter, flags.ignore_case)

    def _group(self, flags: _Flags) -> Node | _Flags:
        self._place += 1
        if self._text.startswith("?", self._place):
            match = _GROUP.match(self._text, self._place)
            if match is None:
                raise self._error("look-around, or a group that is none, is not supported")
            self._place = match.end()
            if match["end"] is not None:
                flags = _flagged(flags, match["on"], match["off"] or "", self._text)
            if match["end"] == ")":
                return flags
        inner = self._choice(flags)
        if not self._text.startswith(")", self._place):
            raise self._error("a group does not end")
        self._place += 1
        return inner

    def _escape(self, flags: _Flags) -> Node:
        code = _CODE.match(self._text, self._place)
        if code is not None:
            self._place = code.end()
            number = int(next(group for group in code.groups() if group is not None), 16)
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                raise self._error(f"{number:x} is no letter's number")
            return Text(chr(number), flags.ignore_case)
        kind = _KIND.match(self._text, self._place)
        if kind is not None:
            self._place = kind.end()
            return Letters(f"[\\{kind[0]}]", flags.ignore_case)
        letter = self._text[self._place : self._place + 1]
        self._place += 1
        if letter in _SIGNS and letter:
            return Text(_SIGNS[letter])
        if not letter or letter in _LOOKS or letter.isalnum() or not letter.isascii():
            raise self._error(f"\\{letter} is not supported")
        return Text(letter)

    def _pass_class(self, depth: int) -> None:
        """Move behind a class in brackets."""
        if depth > MOST_NESTED:
            raise self._error(f"classes are nested more than {MOST_NESTED} deep")
        text = self._text
        self._place += 1
        if text.startswith("^", self._place):
            self._place += 1
        while text.startswith("-", self._place):
            self._place += 1
        if text.startswith("]", self._place):
            self._place += 1
        while self._place < len(text):
            letter = text[self._place]
            if letter == "]":
                self._place += 1
                return
            named = _NAMED_CLASS.match(text, self._place) if letter == "[" else None
            if named is not None:
                self._place = named.end()
            elif letter == "[":
                self._pass_class(depth + 1)
            else:
                self._place += 2 if letter == "\\" else 1
        raise self._error("a class does not end")


def _joined(parts: list[Node]) -> Node:
    return parts[0] if len(parts) == 1 else Sequence(tuple(parts)) if parts else EMPTY
