"""The reader of Lark definitions: rules, terminals and what is ignored between them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from gateway.lark_in_json.common import COMMON
from gateway.lark_in_json.nodes import (
    EMPTY,
    Both,
    Choice,
    Letters,
    Name,
    Node,
    Not,
    Regex,
    Repeat,
    Sequence,
    Text,
    is_terminal,
)
from gateway.lark_in_json.tokens import Token, tokens_of

MOST_NESTED: Final = 60
"""Brackets around a place."""
_ENDS: Final = ("newline", "end")
_STOPS: Final = ("|", ")", "]", "->", "&")
_STATEMENTS: Final = {
    "%json": "a schema within a text is not supported",
    "%regex": "%regex is not supported",
    "%llguidance": "options of llguidance are not supported",
    "%declare": "%declare is not supported",
    "%override": "%override is not supported",
    "%extend": "%extend is not supported",
}


@dataclass(slots=True)
class Definition:
    """What a definition says. `ignored` stands anywhere between terminals."""

    rules: dict[str, Node] = field(default_factory=dict)
    terminals: dict[str, Node] = field(default_factory=dict)
    ignored: list[Node] = field(default_factory=list)


def read(definition: str) -> Definition:
    """What a definition says. LarkError naming the place that is no Lark, or of a kind that is not supported."""
    return _Reader(tokens_of(definition)).read()


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._place = 0
        self._nested = 0
        self._found = Definition()

    def read(self) -> Definition:
        while self._now.kind != "end":
            if not self._take_kind("newline"):
                self._item()
                if self._now.kind not in _ENDS:
                    raise self._now.error(f"{self._now.text!r} stands where a line should end")
        return self._found

    @property
    def _now(self) -> Token:
        return self._tokens[self._place]

    def _next(self) -> Token:
        token = self._now
        self._place += token.kind != "end"
        return token

    def _take_kind(self, kind: str) -> Token | None:
        return self._next() if self._now.kind == kind else None

    def _take(self, sign: str) -> bool:
        if self._now.kind != "sign" or self._now.text != sign:
            return False
        self._place += 1
        return True

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise self._now.error(f"{self._now.text!r} stands where {sign!r} should")

    def _number(self) -> int:
        token = self._take_kind("number")
        if token is None or len(token.text) > 6:
            raise self._now.error("a repetition needs numbers of at most 6 digits")
        return int(token.text)

    def _item(self) -> None:
        token = self._next()
        if token.kind == "statement":
            self._statement(token)
        elif token.kind in ("rule", "terminal"):
            self._named(token)
        else:
            raise token.error(f"{token.text!r} begins no rule, terminal or statement")

    def _named(self, token: Token) -> None:
        name = token.text.lstrip("!?")
        if self._take("."):
            raise token.error(f"priorities, such as that of {name}, are not supported")
        if not self._take(":"):
            raise self._now.error(f"options and parameters, such as those of {name}, are not supported")
        self._define(token, name, self._choice())

    def _define(self, token: Token, name: str, node: Node) -> None:
        known = self._found.terminals if is_terminal(name) else self._found.rules
        if name in known:
            raise token.error(f"{name} is defined twice")
        known[name] = node

    def _statement(self, token: Token) -> None:
        match token.text:
            case "%ignore":
                self._found.ignored.append(self._choice())
            case "%import":
                self._import(token)
            case other:
                raise token.error(_STATEMENTS.get(other, f"{other} is not supported"))

    def _import(self, token: Token) -> None:
        if self._next().text != "common":
            raise token.error("terminals can be imported from common only")
        if self._take("("):
            names = [self._next()]
            while self._take(","):
                names.append(self._next())
            self._need(")")
            for name in names:
                self._define(name, name.text, self._common(name))
            return
        self._need(".")
        imported = self._next()
        name = self._next() if self._take("->") else imported
        if not is_terminal(name.text):
            raise name.error(f"{name.text!r} is no name of a terminal")
        self._define(name, name.text, self._common(imported))

    def _common(self, token: Token) -> Node:
        if token.text not in COMMON:
            raise token.error(f"common has no {token.text!r}")
        return Regex(COMMON[token.text])

    def _choice(self) -> Node:
        self._nested += 1
        if self._nested > MOST_NESTED:
            raise self._now.error(f"brackets are nested more than {MOST_NESTED} deep")
        options = [self._option()]
        while self._take("|") or self._goes_on():
            options.append(self._option())
        self._nested -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _goes_on(self) -> bool:
        """Whether the next line begins with an option; if so, its sign is consumed."""
        if self._now.kind != "newline":
            return False
        self._place += 1
        if self._take("|"):
            return True
        self._place -= 1
        return False

    def _option(self) -> Node:
        both = [self._sequence()]
        while self._take("&"):
            both.append(self._sequence())
        if self._take("->") and self._take_kind("rule") is None:  # what a tree of the text calls this option
            raise self._now.error(f"{self._now.text!r} is no name of an option")
        return both[0] if len(both) == 1 else Both(tuple(both))

    def _sequence(self) -> Node:
        parts = []
        while self._now.kind not in _ENDS and not (self._now.kind == "sign" and self._now.text in _STOPS):
            parts.append(self._repeated())
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts)) if parts else EMPTY

    def _repeated(self) -> Node:
        denied = 0
        while self._take("~"):
            denied += 1
        part = self._atom()
        for _ in range(denied % 2):
            part = Not(part)
        if self._now.kind == "sign" and self._now.text in ("?", "*", "+"):
            sign = self._next().text
            return Repeat(part, int(sign == "+"), 1 if sign == "?" else None)
        if self._now.kind == "sign" and self._now.text == "~" and self._tokens[self._place + 1].kind == "number":
            self._place += 1
            least = self._number()
            return self._bounded(part, least, self._number() if self._take("..") else least)
        if self._take("{"):
            least = 0 if self._now.text == "," else self._number()
            most: int | None = least
            if self._take(","):
                most = self._number() if self._now.kind == "number" else None
            self._need("}")
            return self._bounded(part, least, most)
        return part

    def _bounded(self, part: Node, least: int, most: int | None) -> Node:
        if most is not None and (most < least or most == 0):
            raise self._now.error(f"a repetition from {least} to {most} times is none")
        return Repeat(part, least, most)

    def _atom(self) -> Node:
        token = self._next()
        match token.kind, token.text:
            case "sign", "(":
                inner = self._choice()
                self._need(")")
                return inner
            case "sign", "[":
                inner = self._choice()
                self._need("]")
                return Repeat(inner, 0, 1)
            case (("rule" | "terminal"), name):
                if self._now.text == "{" and self._tokens[self._place + 1].kind in ("rule", "terminal", "string"):
                    raise token.error(f"templates, such as {name}, are not supported")
                return Name(name)
            case "string", _:
                return self._string(token)
            case "regex", text:
                end = text.rindex("/")
                return Regex(text[1:end], text[end + 1 :])
            case "special", text:
                raise token.error(f"{text} would be a special token, which no text has")
            case "reference", text:
                raise token.error(f"{text} refers to another grammar, of which there is none")
            case "statement", text if text in _STATEMENTS:
                raise token.error(_STATEMENTS[text])
        raise token.error(f"{token.text!r} stands where a string, a name or a bracket should")

    def _string(self, token: Token) -> Node:
        text, ignore_case = _said(token.text)
        if not self._take(".."):
            return Text(text, ignore_case)
        last = self._take_kind("string")
        if last is None:
            raise self._now.error("a range ends with a string")
        end, cased = _said(last.text)
        if len(text) != 1 or len(end) != 1 or ignore_case or cased or text > end:
            raise token.error("a range goes from one letter to a later one")
        return Letters(f"[\\x{{{ord(text):x}}}-\\x{{{ord(end):x}}}]")


def _said(string: str) -> tuple[str, bool]:
    return json.loads(string.removesuffix("i")), string.endswith("i")
