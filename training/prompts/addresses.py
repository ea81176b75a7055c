"""Street addresses of the United States and Canada that have their postal code, by the rules of pyap.

Its own `parse` reports where it found something in a text that it has first rewritten, so the rules are applied here.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Final

_COUNTRIES: Final = ("US", "CA")
_GAP: Final = re.compile(r"\s*[\n,][\s,]*|\s+")
_DIGIT: Final = re.compile(r"\d")


class AddressFinder:
    """Spans of addresses in a text."""

    def __init__(self) -> None:
        rules: list[str] = [import_module(f"pyap.source_{country}.data").full_address for country in _COUNTRIES]
        # pyap brings a copy of six whose importer Python no longer calls, and of which it warns at every import.
        sys.meta_path[:] = [each for each in sys.meta_path if type(each).__module__ != "pyap.packages.six"]
        self._rules = [re.compile(rule, re.VERBOSE | re.UNICODE) for rule in rules]

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each."""
        if not _DIGIT.search(text):
            return
        line, places = _one_line(text)
        for rule in self._rules:
            for match in rule.finditer(line):
                if any(value for name, value in match.groupdict().items() if name.startswith("postal_code")):
                    yield places[match.start()], places[match.end() - 1] + 1


def _one_line(text: str) -> tuple[str, list[int]]:
    """The text with breaks of lines written as commas and gaps as one space; and where each character stood."""
    pieces: list[str] = []
    places: list[int] = []
    start = 0
    for gap in _GAP.finditer(text):
        filler = ", " if "\n" in gap.group() or "," in gap.group() else " "
        pieces += (text[start : gap.start()], filler)
        places += range(start, gap.start())
        places += [gap.start()] * len(filler)
        start = gap.end()
    pieces.append(text[start:])
    places += range(start, len(text))
    return "".join(pieces), places
