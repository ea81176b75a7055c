"""Sums over conversations, and the figures that come of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class DecodeCounts:
    """Counts of decode steps, that is of verify steps after the one that ended the prompt, and of what they yielded."""

    conversations: int = 0
    answers: int = 0
    repeating: int = 0
    decoded: int = 0
    steps: int = 0
    room: int = 0
    """Steps that had room for a tree."""
    drafted: int = 0
    seconds: float = 0.0
    accepted: Counter[int] = field(default_factory=Counter)
    """Steps with a tree, by how many of its tokens were right."""
    squares: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Sums over conversations of tokens², tokens x steps and steps²."""

    def add(self, record: Mapping[str, Any]) -> None:
        """Count a conversation, as `training.evaluate.probe` describes it."""
        decoded = sum(answer["decoded"] for answer in record["answers"])
        steps = sum(answer["steps"] for answer in record["answers"])
        self.conversations += 1
        self.answers += len(record["answers"])
        self.decoded += decoded
        self.steps += steps
        dd, ds, ss = self.squares
        self.squares = (dd + decoded * decoded, ds + decoded * steps, ss + steps * steps)
        for answer in record["answers"]:
            self.repeating += answer["repeats"]
            self.room += answer["room"]
            self.drafted += answer["drafted"]
            self.seconds += answer["seconds"]
            self.accepted.update({int(count): steps for count, steps in answer["accepted"].items()})

    @property
    def acceptance_length(self) -> float | None:
        """Tokens a decode step, bonus token included; None without steps."""
        return self.decoded / self.steps if self.steps else None

    @property
    def error(self) -> float | None:
        """Standard error of the acceptance length, conversations being drawn at random; None of fewer than two.

        The acceptance length is a ratio of two sums, of tokens d and steps s; its variance is that of d - ratio * s
        (the linearised variance of a ratio estimator: Cochran, Sampling Techniques, section 6.3).
        """
        if self.conversations < 2 or not self.steps:
            return None
        ratio = self.decoded / self.steps
        dd, ds, ss = self.squares
        spread = max(dd - 2 * ratio * ds + ratio * ratio * ss, 0.0) * self.conversations / (self.conversations - 1)
        return float(spread**0.5 / self.steps)

    @property
    def with_tree(self) -> float | None:
        """Part of the decode steps with room for a tree that had one."""
        return self.accepted.total() / self.room if self.room else None

    @property
    def by_position(self) -> list[float]:
        """Entry k: part of the steps with a tree in which at least k + 1 of its tokens were right.

        One plus their sum is the acceptance length of these steps.
        """
        total = self.accepted.total()
        deepest = max(self.accepted, default=0)
        return [sum(n for count, n in self.accepted.items() if count > k) / total for k in range(deepest)]

    @property
    def seconds_per_token(self) -> float | None:
        """Of one request, with what ran beside it."""
        return self.seconds / self.decoded if self.decoded else None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "conversations": self.conversations,
            "answers": self.answers,
            "repeating_answers": self.repeating,
            "decoded_tokens": self.decoded,
            "decode_steps": self.steps,
            "drafted_tokens": self.drafted,
            "acceptance_length": self.acceptance_length,
            "standard_error": self.error,
            "tree_steps": self.accepted.total(),
            "steps_with_tree": self.with_tree,
            "accepted_by_position": self.by_position,
            "seconds_per_token": self.seconds_per_token,
        }
