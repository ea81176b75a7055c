"""Terminals of a definition, with their regular expressions read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from gateway.lark_in_json.error import LarkError
from gateway.lark_in_json.nodes import Both, Choice, Letters, Name, Node, Not, Regex, Repeat, Sequence, is_terminal
from gateway.lark_in_json.regex import read_regex

_ANY: Final = Repeat(Letters(r"[\x{0}-\x{10FFFF}]"), 0, None)


def spelled(node: Node) -> Node:
    """A part of a terminal with its regular expressions read; what is not something else is so within all texts.

    LarkError where it has a rule, or an expression that is not supported.
    """
    match node:
        case Regex(text, flags):
            return read_regex(text, flags)
        case Name(name) if not is_terminal(name):
            raise LarkError(f"a terminal refers to the rule {name}")
        case Not(part):
            return Both((_ANY, Not(spelled(part))))
    return with_parts(node, [spelled(part) for part in parts_of(node)])


def parts_of(node: Node) -> tuple[Node, ...]:
    """What a node is put together from."""
    match node:
        case Sequence(parts) | Both(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(part, _, _) | Not(part):
            return (part,)
    return ()


def with_parts(node: Node, parts: list[Node]) -> Node:
    """The same of other parts."""
    match node:
        case Sequence():
            return Sequence(tuple(parts))
        case Both():
            return Both(tuple(parts))
        case Choice():
            return Choice(tuple(parts))
        case Repeat(_, least, most):
            return Repeat(parts[0], least, most)
        case Not():
            return Not(parts[0])
    return node


def leaves(node: Node) -> Iterator[Node]:
    """Strings, classes of letters and names within a node."""
    waiting = [node]
    while waiting:
        parts = parts_of(waiting[-1])
        if not parts:
            yield waiting[-1]
        waiting[-1:] = parts


def in_order(terminals: Mapping[str, Node], needed: Iterable[Node]) -> list[str]:
    """The names of terminals that the needed ones refer to, each behind those that it refers to itself.

    LarkError for a name that is unknown, or refers to itself.
    """
    found: set[str] = set()
    order: list[str] = []
    under_way: dict[str, Iterator[str]] = {}  # the path to the name that is looked at, and what is left of each
    for first in needed:
        under_way[""] = _names(first)
        while under_way:
            at = next(reversed(under_way))
            name = next(under_way[at], None)
            if name is None:
                del under_way[at]
                order.append(at)
            elif name in under_way:
                raise LarkError(f"the terminal {name} refers to itself")
            elif name not in terminals:
                raise LarkError(f"the terminal {name} is not defined")
            elif name not in found:
                found.add(name)
                under_way[name] = _names(terminals[name])
    return [name for name in order if name]


def _names(node: Node) -> Iterator[str]:
    return (leaf.name for leaf in leaves(node) if isinstance(leaf, Name))
