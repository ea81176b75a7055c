"""Markers in a text that comes in pieces: where the first one is, and how much of an end may still become one."""

from __future__ import annotations

import re
from typing import NamedTuple


class Found(NamedTuple):
    """A marker and where it stands in the text."""

    begin: int
    end: int
    marker: str


class Markers:
    """Finds the first of several strings, of which none begins another."""

    __slots__ = ("_names", "_pattern")

    def __init__(self, *names: str) -> None:
        self._names = names
        self._pattern = re.compile("|".join(map(re.escape, names)))

    def find(self, text: str, begin: int = 0) -> Found | None:
        """The first marker from `begin` on."""
        match = self._pattern.search(text, begin)
        return None if match is None else Found(match.start(), match.end(), match[0])

    def held(self, text: str) -> int:
        """Length of the longest end of `text` with which a marker may begin; `text` holds no whole one there."""
        most = 0
        for name in self._names:
            for length in range(min(len(name) - 1, len(text)), most, -1):
                if text.endswith(name[:length]):
                    most = length
                    break
        return most

    def begins(self, text: str) -> bool:
        """Whether `text` is the beginning of a marker, and no whole one yet."""
        return any(len(text) < len(name) and name.startswith(text) for name in self._names)
