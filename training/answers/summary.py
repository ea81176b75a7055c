"""What a run of answers came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Summary:
    """Counts over conversations, sequences and answers."""

    conversations: int = 0
    sequences: int = 0
    answers: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    split: int = 0
    """Conversations of several sequences, as their answers are tokenised otherwise than they were written."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Answers by tokens."""

    def add(self, record: dict[str, Any]) -> None:
        """Count what became of a conversation."""
        if record["failure"]:
            self.failures[_kind(record["failure"])] += 1
            return
        self.conversations += 1
        self.sequences += len(record["sequences"])
        self.split += len(record["sequences"]) > 1
        if record["ended"]:
            self.ended[_kind(record["ended"])] += 1
        for sequence in record["sequences"]:
            produced = sum(end - start for start, end in sequence["produced"])
            self.completion_tokens += produced
            self.prompt_tokens += len(sequence["token_ids"]) - produced
            for turn in sequence["turns"]:
                self.answers += 1
                self.finish_reasons[turn["finish_reason"]] += 1
                self.lengths[turn["completion_tokens"]] += 1

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "conversations": self.conversations,
            "sequences": self.sequences,
            "split_conversations": self.split,
            "answers": self.answers,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "answer_tokens": {
                "least": min(self.lengths, default=0),
                "median": quantile(self.lengths, 0.5),
                "p90": quantile(self.lengths, 0.9),
                "most": max(self.lengths, default=0),
            },
            "finish_reasons": dict(sorted(self.finish_reasons.items())),
            "failures": dict(sorted(self.failures.items())),
            "ended_early": dict(sorted(self.ended.items())),
        }


def quantile(counts: Counter[int], share: float) -> int:
    """The least value that at least `share` of all do not exceed; 0 of none."""
    wanted, seen = share * counts.total(), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= wanted:
            return value
    return 0


def _kind(reason: str) -> str:
    """A reason without its numbers, so that like ones count together."""
    return "".join("#" if char.isdigit() else char for char in reason[:120])


@dataclass(slots=True)
class AnsweringRun:
    """What a run came to. `retries` by kind; seconds, conversations and tokens are of this run alone."""

    index: dict[str, Any]
    retries: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    answered: int = 0
    tokens: int = 0


def render(outcome: AnsweringRun) -> str:
    """A few lines for people."""
    summary = outcome.index["summary"]
    lengths = summary["answer_tokens"]
    whole = f"{summary['answers']} answers in {summary['conversations']} conversations"
    least, most = lengths["least"], lengths["most"]
    lines = [
        f"{whole}, {summary['completion_tokens']} tokens of the target's and {summary['prompt_tokens']} others",
        f"ended by: {_counts(summary['finish_reasons'])}",
        f"tokens of an answer: {least} to {most}, median {lengths['median']}, p90 {lengths['p90']}",
    ]
    if outcome.seconds:
        rates = (
            f"{outcome.answered / outcome.seconds:.1f} conversations/s, {outcome.tokens / outcome.seconds:.0f} tokens/s"
        )
        lines.append(f"this run: {outcome.answered} conversations in {outcome.seconds:.0f} s, {rates}")
    for title, counts in (
        ("failed", summary["failures"]),
        ("ended early", summary["ended_early"]),
        ("tried again", outcome.retries),
    ):
        if counts:
            lines.append(f"{title}: {_counts(counts)}")
    if summary["split_conversations"]:
        lines.append(f"conversations of several sequences: {summary['split_conversations']}")
    return "\n".join(lines)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
