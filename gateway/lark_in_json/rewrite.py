"""A Lark definition as rules that match its texts as they are written within something else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.lark_in_json.encoding import Encoding
from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.halves import Halves
from gateway.lark_in_json.lexemes import Lexemes
from gateway.lark_in_json.plan import Plan
from gateway.lark_in_json.syntax import read

MOST_BYTES: Final = 1 << 15
"""Of a definition in UTF-8."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Rules and terminals, the rule that they begin with, and letters of ASCII that texts may have, or more."""

    start: str
    lines: tuple[str, ...]
    letters: frozenset[str]

    def can_hold(self, text: str) -> bool:
        """Whether a text of the grammar may have all letters of this one."""
        return self.letters >= set(text)


def rewritten(definition: str, encoding: Encoding, prefix: str = "c") -> Rewritten:
    """The texts of a definition as the encoding writes them, in rules whose names begin with `prefix`, a small letter.

    They are read as llguidance reads those of the definition itself, with the longest lexeme at each place. Three
    things differ: what is ignored may also stand behind the last terminal, and what a terminal matches, too, may be
    either; what `~` lets through is text; letters that the encoding leaves out are left out of classes. Takes time
    linear in what is read and written, which is bounded.

    LarkError naming the place, or the kind, of what is no Lark or not supported.
    """
    size = len(definition.encode(errors="replace"))
    if size > MOST_BYTES:
        raise LarkError(f"there are {size} bytes, the limit is {MOST_BYTES}")
    found = read(definition)
    plan = Plan(found)
    lexemes = Lexemes(found.terminals, plan.used, encoding, prefix.upper())
    halves = Halves(plan, lexemes, prefix)
    return Rewritten(halves.start, (*halves.lines, *lexemes.lines), lexemes.letters)
