"""How a text is written: within a string of JSON, or as it is."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

CONTROLS: Final = frozenset(map(chr, range(0x20)))


@dataclass(frozen=True, slots=True)
class Encoding:
    r"""`codes` are letters that are written as a backslash and one more letter; `without` are never written at all.

    All others stand for themselves. Every text has one form, and of two texts one begins the other if its form does.
    Hence letters that JSON has no short form for are left out: that of "\u000b" begins as those of others do.
    """

    codes: MappingProxyType[str, str]
    without: frozenset[str]

    @property
    def special(self) -> frozenset[str]:
        """The letters that do not stand for themselves."""
        return self.without | self.codes.keys()


_CODES: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}

IN_JSON: Final = Encoding(MappingProxyType(_CODES), CONTROLS - _CODES.keys())
AS_IT_IS: Final = Encoding(MappingProxyType({}), frozenset())
