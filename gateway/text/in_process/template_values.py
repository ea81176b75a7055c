"""What a chat template can hold while it writes plain messages: kinds of values, and bounds of their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final


class Kind(Enum):
    """What a value can be. Numbers include booleans; TEXTS are a list of strings."""

    TEXT = auto()
    TEXTS = auto()
    NUMBER = auto()
    NONE = auto()
    UNDEFINED = auto()
    MESSAGE = auto()
    MESSAGES = auto()
    NAMESPACE = auto()
    LOOP = auto()


@dataclass(frozen=True, slots=True)
class Value:
    """A value of one of these kinds. `size`: characters at most where there are texts, those of a list together.

    `truth` is what the value counts as in a condition, None where that is not known.
    """

    kinds: frozenset[Kind]
    size: int = 0
    truth: bool | None = None

    def may_be(self, *kinds: Kind) -> bool:
        """Whether it can be one of these."""
        return not self.kinds.isdisjoint(kinds)

    def is_one_of(self, *kinds: Kind) -> bool:
        """Whether it can be nothing else."""
        return self.kinds.issubset(kinds)


def of(*kinds: Kind, size: int = 0, truth: bool | None = None) -> Value:
    """A value of one of these kinds."""
    return Value(frozenset(kinds), size, truth)


def either(*values: Value) -> Value:
    """A value that is one of these."""
    kinds = frozenset[Kind]().union(*(value.kinds for value in values))
    truths = {value.truth for value in values}
    return Value(kinds, max(value.size for value in values), truths.pop() if len(truths) == 1 else None)


def text(size: int) -> Value:
    """A string of so many characters at most."""
    return of(Kind.TEXT, size=size)


NUMBER: Final = of(Kind.NUMBER)
NONE: Final = of(Kind.NONE, truth=False)
UNDEFINED: Final = of(Kind.UNDEFINED, truth=False)
MESSAGE: Final = of(Kind.MESSAGE, truth=True)
MESSAGES: Final = of(Kind.MESSAGES)
WRITTEN: Final = (Kind.TEXT, Kind.NUMBER, Kind.NONE, Kind.UNDEFINED)
"""What can be part of a text. Lists and objects would be written as Python writes them, which has no bound here."""
