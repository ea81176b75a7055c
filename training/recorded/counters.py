"""What a run of recordings came to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class LineCounts:
    """Counts over lines, and over the sequences that were written of them."""

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    sequences: Counter[str] = field(default_factory=Counter)
    """By category, as are the tokens."""
    tokens: Counter[str] = field(default_factory=Counter)
    produced: Counter[str] = field(default_factory=Counter)

    def add(self, category: str, tokens: int, produced: int) -> None:
        """Count a sequence."""
        self.sequences[category] += 1
        self.tokens[category] += tokens
        self.produced[category] += produced

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "lines": self.read,
            "conversations": self.kept,
            "dropped": dict(sorted(self.dropped.items())),
            "ended_early": dict(sorted(self.ended.items())),
            "sequences": self.sequences.total(),
            "tokens": self.tokens.total(),
            "produced": self.produced.total(),
            "categories": {
                name: {"sequences": count, "tokens": self.tokens[name], "produced": self.produced[name]}
                for name, count in sorted(self.sequences.items())
            },
        }


@dataclass(slots=True)
class RecordedRun:
    """What a run came to; seconds are of this run alone, 0 where there was nothing to do."""

    index: dict[str, Any]
    seconds: float = 0.0


def render(outcome: RecordedRun) -> str:
    """A few lines for people."""
    summary = outcome.index["summary"]
    sequences, tokens, produced = summary["sequences"], summary["tokens"], summary["produced"]
    lines = [
        f"{sequences} sequences of {tokens} tokens, {produced} of them to learn from",
        f"{summary['conversations']} of {summary['lines']} lines",
    ]
    if sequences:
        lines.append(f"{tokens / sequences:.0f} tokens a sequence, {produced / tokens:.0%} of them to learn from")
    for title, counts in (("dropped", summary["dropped"]), ("ended early", summary["ended_early"])):
        if counts:
            lines.append(f"{title}: {', '.join(f'{name} {count}' for name, count in counts.items())}")
    if outcome.seconds:
        lines.append(f"this run: {outcome.seconds:.1f} s, {tokens / outcome.seconds:.0f} tokens/s")
    return "\n".join(lines)
