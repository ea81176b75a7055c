"""Whether the same prompts were answered alike, token by token, in every cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.serving.answer import Answer

SHOWN = 20
"""Differences that are kept in full."""
AROUND = 8
"""Tokens, and characters, from the first difference on that are shown."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two answers to one prompt. `at`: the first place where they differ, in tokens, or in characters of texts."""

    cell: str
    reference: str
    prompt: int
    context: int
    unit: str
    at: int
    expected: str
    found: str


@dataclass(slots=True)
class _Known:
    """The first whole answer to a prompt."""

    cell: str
    token_ids: tuple[int, ...] | None
    text: str


@dataclass(slots=True)
class Comparison:
    """Compares each whole answer with the first one to the same prompt, by ids where both have them, else by text."""

    by_ids: int = 0
    by_text: int = 0
    differing: int = 0
    differences: list[Difference] = field(default_factory=list)
    _known: dict[tuple[int, int], _Known] = field(default_factory=dict)

    def add(self, cell: str, context: int, answers: Iterable[Answer]) -> int:
        """Take in the answers of a cell to prompts of one context; how many differ."""
        before = self.differing
        for answer in answers:
            if answer.whole:
                self._add(cell, context, answer)
        return self.differing - before

    def summary(self) -> dict[str, Any]:
        """For a file of results."""
        return {
            "prompts": len(self._known),
            "compared_by_token_ids": self.by_ids,
            "compared_by_text": self.by_text,
            "differing": self.differing,
            "examples": [asdict(difference) for difference in self.differences],
        }

    def _add(self, cell: str, context: int, answer: Answer) -> None:
        known = self._known.get((context, answer.prompt))
        if known is None:
            self._known[context, answer.prompt] = _Known(cell, answer.token_ids, answer.text)
            return
        if known.token_ids is not None and answer.token_ids is not None:
            self.by_ids += 1
            found = first_difference(known.token_ids, answer.token_ids)
            unit = "token"
        else:
            self.by_text += 1
            found = first_difference(known.text, answer.text)
            unit = "character"
        if found is None:
            known.token_ids = answer.token_ids if known.token_ids is None else known.token_ids
            return
        self.differing += 1
        if len(self.differences) < SHOWN:
            one, other = (
                (known.token_ids or (), answer.token_ids or ()) if unit == "token" else (known.text, answer.text)
            )
            shown = repr(one[found : found + AROUND]), repr(other[found : found + AROUND])
            self.differences.append(Difference(cell, known.cell, answer.prompt, context, unit, found, *shown))


def first_difference(one: tuple[int, ...] | str, other: tuple[int, ...] | str) -> int | None:
    """The first place where two sequences differ, the end of the shorter one included; None if they are equal."""
    for at, (own, its) in enumerate(zip(one, other, strict=False)):
        if own != its:
            return at
    return None if len(one) == len(other) else min(len(one), len(other))
