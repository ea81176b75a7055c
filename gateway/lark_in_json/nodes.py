"""What rules and terminals are made of, once they are read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    text: str
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression between slashes, and the letters behind them."""

    text: str
    flags: str = ""


@dataclass(frozen=True, slots=True)
class Letters:
    """One letter of a class, as regular expressions write it in brackets."""

    written: str
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """A rule or terminal."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part behind the other; of no part: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part from `least` to `most` times; None: any number of times."""

    part: Node
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Both:
    """What each of the parts matches. Terminals alone have it."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """What the part does not match. Terminals alone have it."""

    part: Node


@dataclass(frozen=True, slots=True)
class Behind:
    """A letter that is one of these codes, behind a backslash that is no part of it."""

    codes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rest:
    """A terminal without its first backslash."""

    name: str


Node = Text | Regex | Letters | Name | Sequence | Choice | Repeat | Both | Not | Behind | Rest

EMPTY = Sequence(())


def is_terminal(name: str) -> bool:
    """Whether a name is a terminal's rather than a rule's."""
    return name.lstrip("_")[:1].isupper()
