"""Stop strings over a stream of text, without ever letting out the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


def _borders(pattern: str) -> list[int]:
    """Length of the longest proper prefix of pattern[:i] that is also its suffix, for i = 0..len(pattern).

    Knuth, Morris, Pratt: Fast pattern matching in strings (SIAM J. Comput. 6, 1977), section 2.
    """
    borders = [0] * (len(pattern) + 1)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length]
        length += pattern[index] == pattern[length]
        borders[index + 1] = length
    return borders


class StopStrings:
    """Finds the first stop string that is completed, character by character.

    The result does not depend on how the text is cut into pieces. Where several strings end at the same character
    the longest wins. Text that may still become a stop string is held back.
    """

    __slots__ = ("_borders", "_held", "_matched_lengths", "_patterns", "matched")

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)
        self._borders = [_borders(pattern) for pattern in self._patterns]
        self._matched_lengths = [0] * len(self._patterns)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, armed: bool = True) -> str:
        """Take in more text; returns what is safe to show. After a match `matched` is set and the rest is dropped.

        While not `armed` a completed stop string is ordinary text.
        """
        if not text:
            return ""
        buffer = self._held + text
        for end in range(len(self._held) + 1, len(buffer) + 1):
            found = self._advance(buffer[end - 1])
            if armed and found:
                self.matched, self._held = found, ""
                return buffer[: end - len(found)]
        safe = len(buffer) - max(self._matched_lengths)
        self._held = buffer[safe:]
        return buffer[:safe]

    def flush(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        self._matched_lengths = [0] * len(self._patterns)
        return held

    def _advance(self, char: str) -> str:
        """Move every pattern's automaton by one character; returns the longest pattern completed, or ""."""
        longest = ""
        for index, pattern in enumerate(self._patterns):
            borders = self._borders[index]
            length = self._matched_lengths[index]
            if length == len(pattern):
                length = borders[length]
            while length and pattern[length] != char:
                length = borders[length]
            length += pattern[length] == char
            self._matched_lengths[index] = length
            if length == len(pattern) > len(longest):
                longest = pattern
        return longest
