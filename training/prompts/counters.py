"""What a run has seen and done so far, as its report tells it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

SAMPLES: Final = 8
"""Kept of each kind of personal data and of each reason; the first ones, so that a rerun shows the same."""


@dataclass(slots=True)
class PromptCounts:
    """Counts of lines by what became of them, and the first samples."""

    read: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    """By split: "train", "heldout"."""
    tokens: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    """Pieces of personal data by kind."""
    cleaned: int = 0
    """Kept prompts from which personal data was removed."""
    found_samples: dict[str, list[str]] = field(default_factory=dict)
    dropped_samples: dict[str, list[str]] = field(default_factory=dict)

    def drop(self, reason: str, origin: str, detail: str) -> None:
        """Count a line that goes no further."""
        self.dropped[reason] += 1
        self._sample(self.dropped_samples, reason, f"{origin}: {detail}" if detail else origin)

    def find(self, kind: str, sample: str) -> None:
        """Count a piece of personal data."""
        self.found[kind] += 1
        self._sample(self.found_samples, kind, sample)

    def keep(self, split: str, tokens: int | None, *, cleaned: bool) -> None:
        """Count a prompt that was written."""
        self.kept[split] += 1
        self.tokens[split] += tokens or 0
        self.cleaned += cleaned

    @staticmethod
    def _sample(samples: dict[str, list[str]], name: str, text: str) -> None:
        kept = samples.setdefault(name, [])
        if len(kept) < SAMPLES:
            kept.append(text)

    def document(self) -> dict[str, Any]:
        """As JSON has it, keys in order."""
        return {
            "read": self.read,
            "kept": dict(sorted(self.kept.items())),
            "tokens": dict(sorted(self.tokens.items())),
            "dropped": dict(sorted(self.dropped.items())),
            "personal_data": dict(sorted(self.found.items())),
            "cleaned": self.cleaned,
            "personal_data_samples": dict(sorted(self.found_samples.items())),
            "dropped_samples": dict(sorted(self.dropped_samples.items())),
        }

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> PromptCounts:
        """What `document` wrote."""
        return cls(
            read=document["read"],
            kept=Counter(document["kept"]),
            tokens=Counter(document["tokens"]),
            dropped=Counter(document["dropped"]),
            found=Counter(document["personal_data"]),
            cleaned=document["cleaned"],
            found_samples=document["personal_data_samples"],
            dropped_samples=document["dropped_samples"],
        )
