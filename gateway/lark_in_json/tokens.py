"""Words of a Lark definition, in llguidance's dialect."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gateway.lark_in_json.error import LarkError

_KINDS: Final = re.compile(
    r"""
    (?P<skipped>(?:\#|//)[^\n]*|[ \t]+)
    |(?P<newline>(?:\r?\n[ \t]*)+)
    |(?P<string>"(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|[^"\\\x00-\x1f\x7f])*"i?)
    |(?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
    |(?P<rule>!?[_?]?[a-z][_a-z0-9-]*)
    |(?P<terminal>_?[A-Z][_A-Z0-9-]*)
    |(?P<number>[0-9]+)
    |(?P<statement>%[a-z]+)
    |(?P<special><[^<>\s]+>)
    |(?P<reference>@[a-zA-Z0-9_-]+)
    |(?P<sign>->|\.\.|::|[:|(){}\[\],.~&=+*?])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word, its kind, and where it begins, both counted from 1."""

    kind: str
    text: str
    line: int
    column: int

    def error(self, reason: str) -> LarkError:
        """The error for a definition that cannot be followed because of this word."""
        return LarkError(f"line {self.line}, column {self.column}: {reason}")


def tokens_of(definition: str) -> list[Token]:
    """The words, without spaces and comments, and one of kind "end" behind them. Takes time linear in the text.

    LarkError naming the place that begins no word.
    """
    tokens: list[Token] = []
    place, line, begin = 0, 1, 0  # `begin` is where the line begins
    while place < len(definition):
        match = _KINDS.match(definition, place)
        if match is None:
            shown = definition[place : place + 20].split("\n", maxsplit=1)[0]
            raise LarkError(f"line {line}, column {place - begin + 1}: {shown!r} begins no word of Lark")
        kind, text = match.lastgroup or "", match[0]
        if kind != "skipped":
            tokens.append(Token(kind, text, line, place - begin + 1))
        if "\n" in text:
            line += text.count("\n")
            begin = place + text.rindex("\n") + 1
        place = match.end()
    tokens.append(Token("end", "the end", line, place - begin + 1))
    return tokens
