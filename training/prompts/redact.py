"""Personal data out of texts, and samples of it that show what kind of thing it was and not whose."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from training.prompts.pii import Finding
from training.prompts.records import Turn

_CONTEXT: Final = 24
_LETTERS_AND_DIGITS: Final = re.compile(r"\w")
_SHOWN: Final = 2
"""Characters of a long finding that its sample shows; of a secret none are shown."""


def scrub(turn: Turn, findings: Sequence[Finding]) -> Turn:
    """The turn with [EMAIL] and the like in place of what was found."""
    pieces: list[str] = []
    end = 0
    for finding in findings:
        pieces += (turn.content[end : finding.start], placeholder(finding.kind))
        end = finding.end
    pieces.append(turn.content[end:])
    return Turn(turn.role, "".join(pieces))


def placeholder(kind: str) -> str:
    """What stands in a prompt for personal data of a kind."""
    return f"[{kind.upper()}]"


def samples(text: str, findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Kind and masked surroundings of each finding; other findings near by are placeholders."""
    shown: list[tuple[str, str]] = []
    for index, finding in enumerate(findings):
        before = scrub(Turn("", text[: finding.start]), findings[:index]).content[-_CONTEXT:]
        after = text[finding.end : finding.end + _CONTEXT]
        if index + 1 < len(findings):
            after = after[: max(0, findings[index + 1].start - finding.end)]
        found = masked(text[finding.start : finding.end], finding.kind)
        shown.append((finding.kind, " ".join(f"{before}»{found}«{after}".split())))
    return shown


def masked(found: str, kind: str) -> str:
    """The shape of what was found: letters and digits as *, but for the first two of something long."""
    hidden = _LETTERS_AND_DIGITS.sub("*", found.split("\n", 1)[0][:40])
    visible = 0 if kind == "secret" or len(found) < 4 * _SHOWN else _SHOWN
    return found[:visible] + hidden[visible:]
