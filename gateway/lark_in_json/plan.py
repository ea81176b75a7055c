"""Rules of a definition as a graph of small nodes: a lexeme, the empty text, a pair, a choice, any number of a part."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Final

from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.nodes import Both, Choice, Name, Node, Not, Repeat, Sequence, is_terminal
from gateway.lark_in_json.syntax import Definition
from gateway.lark_in_json.terminals import parts_of

MOST_NODES: Final = 20_000
"""Of the graph."""
MOST_TIMES: Final = 100
"""That a part of a rule may be said to repeat, at least or at most."""


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A text of a terminal; `number` is its place among those used."""

    number: int


@dataclass(frozen=True, slots=True)
class Empty:
    """The empty text."""


@dataclass(frozen=True, slots=True)
class Pair:
    """One part behind the other."""

    first: int
    second: int


@dataclass(frozen=True, slots=True)
class Either:
    """One of the options."""

    options: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Many:
    """A part any number of times."""

    part: int


Part = Lexeme | Empty | Pair | Either | Many


class Plan:
    """The graph: parts refer to others by their place in `parts`. `used` are the terminals that lexemes are of.

    LarkError for what a definition lacks, and for one that is too large when its repetitions are written out.
    """

    def __init__(self, definition: Definition) -> None:
        self._rules = definition.rules
        self.parts: list[Part] = []
        self.used: list[Node] = []
        self._lexemes: dict[Node, int] = {}
        self._places: dict[str, int] = {}  # of rules
        self._empty = self._add(Empty())
        self._ignored: int | None = None
        if definition.ignored:
            self._ignored = self._add(Many(self._terminal(Choice(tuple(definition.ignored)), ignored=True)))
        if "start" not in self._rules:
            raise LarkError("there is no rule named start")
        waiting = ["start"]
        self.start = self._place("start", waiting.append)
        while waiting:
            name = waiting.pop()
            self.parts[self._places[name]] = Either((self._planned(self._rules[name], waiting.append),))

    def _add(self, part: Part) -> int:
        if len(self.parts) >= MOST_NODES:
            raise LarkError(f"the rules have more than {MOST_NODES} parts when repetitions are written out")
        self.parts.append(part)
        return len(self.parts) - 1

    def _place(self, name: str, met: Callable[[str], None]) -> int:
        """The place of a rule, whose parts follow where it is met for the first time."""
        if name not in self._rules:
            raise LarkError(f"the rule {name} is not defined")
        if name not in self._places:
            self._places[name] = self._add(Empty())
            met(name)
        return self._places[name]

    def _terminal(self, node: Node, *, ignored: bool = False) -> int:
        place = self._lexemes.get(node)
        if place is None:
            place = self._add(Lexeme(len(self.used)))
            self.used.append(node)
            if not ignored and self._ignored is not None:
                place = self._add(Pair(place, self._ignored))
            if not ignored:
                self._lexemes[node] = place
        return place

    def _planned(self, node: Node, met: Callable[[str], None]) -> int:
        match node:
            case Name(name) if not is_terminal(name):
                return self._place(name, met)
            case Sequence(parts):
                return self._in_turn([self._planned(part, met) for part in parts])
            case Choice(options):
                return self._add(Either(tuple(self._planned(option, met) for option in options)))
            case Repeat(part, least, most):
                return self._repeated(self._planned(part, met), least, most)
            case Both():
                raise LarkError("& is for terminals only, whose names are in capitals")
            case Not() if _has_rule(node):
                raise LarkError("~ is for terminals only, whose names are in capitals")
        return self._terminal(node)

    def _in_turn(self, places: SequenceOf[int]) -> int:
        """Bound from the left: what Earley's algorithm keeps of it does not grow with the text."""
        whole = self._empty
        for place in places:
            whole = place if whole == self._empty else self._add(Pair(whole, place))
        return whole

    def _repeated(self, part: int, least: int, most: int | None) -> int:
        if max(least, most or 0) > MOST_TIMES:
            raise LarkError(f"a part of a rule repeats up to {max(least, most or 0)} times, the limit is {MOST_TIMES}; "
                            "a terminal has no such limit")  # fmt: skip
        first = self._in_turn([part] * least)
        if most is None:
            return self._in_turn([first, self._add(Many(part))])
        some = self._empty
        for _ in range(most - least):
            some = self._add(Either((self._empty, self._in_turn([some, part]))))
        return self._in_turn([first, some])


def _has_rule(node: Node) -> bool:
    if isinstance(node, Name):
        return not is_terminal(node.name)
    return any(map(_has_rule, parts_of(node)))
