r"""Terminals as their texts are written, whole and cut at the first or behind the last backslash.

llguidance's lexer decides byte by byte whether the lexeme under way goes on, and never goes back. In JSON a backslash
does not tell a quote from a new line, one of which may go on with the lexeme and the other begin the next. So each
terminal has up to four lexemes: with a backslash behind it, which belongs to the first letter of what follows, and
without its own first backslash, which the lexeme before it has had. The lexer then goes on with the longest text just
as it does where letters are single bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Final

from gateway.lark_in_json.encoding import Encoding
from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.members import members_of, regex_of_class
from gateway.lark_in_json.nodes import (
    Behind,
    Both,
    Choice,
    Letters,
    Name,
    Node,
    Not,
    Repeat,
    Rest,
    Sequence,
    Text,
)
from gateway.lark_in_json.terminals import in_order, leaves, spelled

MOST_NODES: Final = 60_000
"""Parts of terminals that are written, the same ones as often as they stand somewhere."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A part of a grammar: a regular expression, or an expression of Lark."""

    text: str
    is_regex: bool = True

    @property
    def as_lark(self) -> str:
        return (f"/{self.text}/" if self.text else '""') if self.is_regex else self.text


class Lexemes:
    """The lexemes of terminals in one encoding. `lines` define them and all that they refer to.

    Names begin with `prefix`, which begins with a capital letter.
    """

    def __init__(self, terminals: Mapping[str, Node], used: SequenceOf[Node], encoding: Encoding, prefix: str) -> None:
        self._encoding = encoding
        self._prefix = prefix
        self._nodes = 0
        self._spelled = {name: spelled(node) for name, node in terminals.items()}
        self._used = [spelled(node) for node in used]
        order = in_order(self._spelled, self._used)
        whole = [*(self._spelled[name] for name in order), *self._used]
        classes = dict.fromkeys(leaf for node in whole for leaf in leaves(node) if isinstance(leaf, Letters))
        self._members = members_of(list(classes))
        self._numbers: dict[str, int] = {}
        self._empty: dict[str, bool] = {}
        self._cuts: dict[str, bool] = {}
        self.lines: list[str] = []
        for name in order:
            node = self._spelled[name]
            self._numbers[name] = len(self._numbers)
            self._empty[name] = self._can_be_empty(node)
            self._define(f"{prefix}N{self._numbers[name]}", node)
            cut = self._cut(node)
            self._cuts[name] = cut is not None
            if cut is not None:
                self._define(f"{prefix}C{self._numbers[name]}", cut)
        self.can_be_empty = [self._can_be_empty(node) for node in self._used]
        self._cut_used = [self._cut(node) for node in self._used]
        self.begins_special = [cut is not None for cut in self._cut_used]
        self._defined: set[str] = set()

    @property
    def letters(self) -> frozenset[str]:
        """Letters of ASCII that the texts of terminals may have, or more."""
        found: set[str] = set()
        for node in [*self._used, *self._spelled.values()]:
            for leaf in leaves(node):
                if isinstance(leaf, Letters):
                    found |= self._members.get(leaf, frozenset())
                elif isinstance(leaf, Text):
                    found |= set(leaf.text.lower() + leaf.text.upper() if leaf.ignore_case else leaf.text)
        return frozenset(found)

    def lexeme(self, number: int, *, cut: bool, more: bool) -> str:
        """The name of the lexeme of a used terminal, without its own first backslash, with that of the next letter."""
        name = f"{self._prefix}{'R' if cut else 'T'}{number}"
        self._define_once(name, self._cut_used[number] if cut else self._used[number])
        if not more:
            return name
        longer = f"{name}B"
        if longer not in self._defined:
            self._defined.add(longer)
            self.lines.append(f'{longer}: {name} "\\\\"')
        return longer

    def _define_once(self, name: str, node: Node | None) -> None:
        assert node is not None
        if name not in self._defined:
            self._defined.add(name)
            self._define(name, node)

    def _define(self, name: str, node: Node) -> None:
        self.lines.append(f"{name}: {self._written(node).as_lark}")

    def _can_be_empty(self, node: Node) -> bool:
        match node:
            case Text(text, _):
                return not text
            case Name(name):
                return self._empty[name]
            case Sequence(parts) | Both(parts):
                return all(map(self._can_be_empty, parts))
            case Choice(options):
                return any(map(self._can_be_empty, options))
            case Repeat(part, least, _):
                return least == 0 or self._can_be_empty(part)
            case Not(part):
                return not self._can_be_empty(part)
        return False

    def _cut(self, node: Node) -> Node | None:
        """The texts that begin with a backslash, without it; None where there are none."""
        match node:
            case Text(text, ignore_case):
                code = self._encoding.codes.get(text[:1])
                return None if code is None else Sequence((Behind(frozenset(code)), Text(text[1:], ignore_case)))
            case Letters():
                codes = frozenset(map(self._encoding.codes.__getitem__, self._coded(node)))
                return Behind(codes) if codes else None
            case Name(name):
                return Rest(name) if self._cuts[name] else None
            case Sequence(parts):
                return self._cut_sequence(parts)
            case Choice(options):
                cut = [found for found in map(self._cut, options) if found is not None]
                return None if not cut else cut[0] if len(cut) == 1 else Choice(tuple(cut))
            case Repeat(part, least, most):
                first = self._cut(part)
                more = Repeat(part, max(least - 1, 0), None if most is None else most - 1)
                return first if first is None or more.most == 0 else Sequence((first, more))
            case Both(parts):
                return self._cut_both(parts)
        return None

    def _cut_sequence(self, parts: tuple[Node, ...]) -> Node | None:
        options: list[Node] = []
        for place, part in enumerate(parts):
            first = self._cut(part)
            if first is not None:
                self._count(len(parts) - place)
                options.append(Sequence((first, *parts[place + 1 :])))
            if not self._can_be_empty(part):
                break
        return None if not options else options[0] if len(options) == 1 else Choice(tuple(options))

    def _cut_both(self, parts: tuple[Node, ...]) -> Node | None:
        """What is denied is denied behind the backslash, too, unless it never begins with one."""
        cut: list[Node] = []
        for part in parts:
            first = self._cut(part.part if isinstance(part, Not) else part)
            if first is not None:
                cut.append(Not(first) if isinstance(part, Not) else first)
            elif not isinstance(part, Not):
                return None
        return Both(tuple(cut))

    def _coded(self, letters: Letters) -> frozenset[str]:
        return self._members[letters] & self._encoding.codes.keys()

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MOST_NODES:
            raise LarkError(f"terminals have more than {MOST_NODES} letters, classes and repetitions in all")

    def _written(self, node: Node) -> _Written:
        self._count(1)
        match node:
            case Text(text, ignore_case):
                self._count(len(text))
                return _Written("".join(self._letter(letter, ignore_case=ignore_case) for letter in text))
            case Letters():
                return _Written(self._class(node))
            case Behind(codes):
                return _Written(_one_of(codes))
            case Name(name):
                return _Written(f"{self._prefix}N{self._numbers[name]}", is_regex=False)
            case Rest(name):
                return _Written(f"{self._prefix}C{self._numbers[name]}", is_regex=False)
            case Sequence(parts):
                return _put_together([self._written(part) for part in parts], "", " ")
            case Choice(options):
                return _put_together([self._written(option) for option in options], "|", " | ")
            case Repeat(part, least, most):
                return _repeated(self._written(part), least, most)
            case Both(parts):
                return _Written(f"({' & '.join(self._written(part).as_lark for part in parts)})", is_regex=False)
            case Not(part):
                return _Written(f"~({self._written(part).as_lark})", is_regex=False)
        raise AssertionError(node)

    def _letter(self, letter: str, *, ignore_case: bool) -> str:
        if letter in self._encoding.without:
            raise LarkError(f"the control character U+{ord(letter):04X} is never written within JSON")
        code = self._encoding.codes.get(letter)
        if code is not None:
            return rf"\\{_escaped(code)}"
        return f"(?i:{_escaped(letter)})" if ignore_case and letter.isalpha() else _escaped(letter)

    def _class(self, letters: Letters) -> str:
        if not self._members[letters] & self._encoding.special:
            return regex_of_class(letters)
        plain = regex_of_class(Letters(f"[{letters.written}--{_one_of(self._encoding.special)}]", letters.ignore_case))
        codes = frozenset(map(self._encoding.codes.__getitem__, self._coded(letters)))
        return rf"(?:{plain}|\\{_one_of(codes)})" if codes else plain


def _put_together(parts: list[_Written], of_regex: str, of_lark: str) -> _Written:
    if all(part.is_regex for part in parts):
        return _Written(
            f"(?:{of_regex.join(part.text for part in parts)})" if of_regex else "".join(p.text for p in parts)
        )
    return _Written(f"({of_lark.join(part.as_lark for part in parts)})", is_regex=False)


def _repeated(part: _Written, least: int, most: int | None) -> _Written:
    sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    if sign is None:
        sign = f"{{{least},{'' if most is None else most}}}"
    if part.is_regex:
        return _Written(f"(?:{part.text}){sign}")
    return _Written(f"({part.text}){sign}", is_regex=False)


def _one_of(letters: frozenset[str]) -> str:
    """A class of these letters, neighbours as ranges."""
    runs: list[list[int]] = []
    for code in sorted(map(ord, letters)):
        if runs and runs[-1][1] == code - 1:
            runs[-1][1] = code
        else:
            runs.append([code, code])
    return f"[{''.join(_escaped(chr(a)) + (f'-{_escaped(chr(b))}' if b > a else '') for a, b in runs)}]"


def _escaped(letter: str) -> str:
    return letter if letter.isascii() and letter.isalnum() else f"\\x{{{ord(letter):x}}}"
