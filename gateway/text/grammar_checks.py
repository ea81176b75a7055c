"""When grammars are checked: once a worker, and beside everything else that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

from gateway.text.grammars import Check
from gateway.text.prepared import Prepared

MOST_TAKEN: Final = 4096
"""Grammars that are remembered to have been checked."""

Unchecked = Callable[[Prepared, Callable[[], None]], None]
"""Called with a request that is read, and what checks its grammar, which it does."""


def unhurried(_: Prepared, check: Callable[[], None]) -> None:
    """Check with nobody told."""
    check()


class GrammarChecks:
    """Remembers grammars that were found good, by their content: a request with one of them has nothing to check."""

    __slots__ = ("_taken",)

    def __init__(self) -> None:
        self._taken: set[bytes] = set()

    def run(self, prepared: Prepared, checks: Sequence[Check], unchecked: Unchecked) -> Prepared:
        """Return the request once its grammar is checked. Raises what a check does.

        One check alone is about the request's own grammar. Several are about parts of which that is made, too, and are
        done each time.
        """
        if not checks:
            return prepared
        grammar = sha256(prepared.grammar_wire).digest() if len(checks) == 1 else b""
        if grammar in self._taken:
            return prepared

        def check() -> None:
            for each in checks:
                each()

        unchecked(prepared, check)
        if grammar:
            if len(self._taken) >= MOST_TAKEN:
                self._taken.clear()
            self._taken.add(grammar)
        return prepared
