"""Rules over lexemes that are cut at backslashes: each part of a plan in up to four forms.

A form is a pair: whether the part begins behind a backslash that the lexeme before it has had, and whether it ends with
the backslash of the letter that follows. A part follows another one where the two agree.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.lexemes import Lexemes
from gateway.lark_in_json.plan import Either, Empty, Lexeme, Many, Pair, Part, Plan

Form = tuple[bool, bool]

_SAME: Final[frozenset[Form]] = frozenset({(False, False), (True, True)})
_SIDES: Final = (False, True)


class Halves:
    """Lines of Lark for the whole of a plan. `start` is the rule that they begin with."""

    def __init__(self, plan: Plan, lexemes: Lexemes, prefix: str) -> None:
        self._parts = plan.parts
        self._lexemes = lexemes
        self._prefix = prefix
        self._forms = self._possible()
        if (False, False) not in self._forms[plan.start]:
            raise LarkError("the grammar matches no text at all")
        self._waiting: list[tuple[int, Form]] = []
        self._named: set[tuple[int, Form]] = set()
        self.start = self._name(plan.start, (False, False))
        self.lines: list[str] = []
        while self._waiting:
            place, form = self._waiting.pop()
            self.lines.append(f"{self._rule(place, form)}: {' | '.join(self._options(place, form))}")

    def _possible(self) -> list[frozenset[Form]]:
        """The forms in which each part has any text: a least fixed point."""
        forms: list[frozenset[Form]] = [frozenset() for _ in self._parts]
        above: dict[int, list[int]] = defaultdict(list)
        for place, part in enumerate(self._parts):
            for below in _below(part):
                above[below].append(place)
        waiting = list(range(len(self._parts)))
        while waiting:
            place = waiting.pop()
            found = self._forms_of(self._parts[place], forms, forms[place])
            if found != forms[place]:
                forms[place] = found
                waiting += above[place]
                waiting.append(place)
        return forms

    def _forms_of(self, part: Part, forms: list[frozenset[Form]], so_far: frozenset[Form]) -> frozenset[Form]:
        match part:
            case Lexeme(number):
                begins = _SIDES if self._lexemes.begins_special[number] else (False,)
                own = frozenset((begin, end) for begin in begins for end in _SIDES)
                return own | (_SAME if self._lexemes.can_be_empty[number] else frozenset())
            case Empty():
                return _SAME
            case Pair(first, second):
                return _joined(forms[first], forms[second])
            case Either(options):
                return frozenset().union(*(forms[option] for option in options))
            case Many(inner):
                return _SAME | so_far | _joined(_SAME | so_far, forms[inner])

    def _rule(self, place: int, form: Form) -> str:
        return f"{self._prefix}p{place}f{int(form[0])}{int(form[1])}"

    def _name(self, place: int, form: Form) -> str:
        """How a part in a form is written within a rule."""
        part = self._parts[place]
        if isinstance(part, Empty):
            return '""'
        if isinstance(part, Lexeme) and not self._lexemes.can_be_empty[part.number]:
            return self._lexemes.lexeme(part.number, cut=form[0], more=form[1])
        if (place, form) not in self._named:
            self._named.add((place, form))
            self._waiting.append((place, form))
        return self._rule(place, form)

    def _options(self, place: int, form: Form) -> Iterator[str]:
        match self._parts[place]:
            case Lexeme(number):
                if form in _SAME:
                    yield '""'
                if not form[0] or self._lexemes.begins_special[number]:
                    yield self._lexemes.lexeme(number, cut=form[0], more=form[1])
            case Empty():
                yield '""'
            case Pair(first, second):
                yield from self._pairs(first, second, form)
            case Either(options):
                yield from (self._name(option, form) for option in options if form in self._forms[option])
            case Many(inner):
                if form in _SAME:
                    yield '""'
                yield from self._pairs(place, inner, form)

    def _pairs(self, first: int, second: int, form: Form) -> Iterator[str]:
        for side in _SIDES:
            before, behind = (form[0], side), (side, form[1])
            if before in self._forms[first] and behind in self._forms[second]:
                yield f"{self._name(first, before)} {self._name(second, behind)}"


def _below(part: Part) -> tuple[int, ...]:
    match part:
        case Pair(first, second):
            return first, second
        case Either(options):
            return options
        case Many(inner):
            return (inner,)
    return ()


def _joined(before: frozenset[Form], behind: frozenset[Form]) -> frozenset[Form]:
    return frozenset((first[0], second[1]) for first in before for second in behind if first[1] == second[0])
