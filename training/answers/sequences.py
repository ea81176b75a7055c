"""Token sequences of a conversation, in which each token that counts stands behind exactly what the target saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer. Counts are of tokens; those of the prompt include all that came before."""

    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    seed: int


@dataclass(slots=True)
class TokenSequence:
    """Ids, and the half-open spans of those that the target produced; `messages` is what they say."""

    token_ids: list[int]
    produced: list[tuple[int, int]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "token_ids": self.token_ids,
            "produced": [list(span) for span in self.produced],
            "turns": [asdict(turn) for turn in self.turns],
            "messages": self.messages,
        }


def extend(
    sequences: list[TokenSequence],
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    turn: Turn,
    messages: Sequence[Message],
) -> None:
    """Add an answer: to the last sequence where its prompt begins with that, else to one of its own.

    A prompt holds earlier answers as text, and the tokenizer need not split them as the target wrote them. Where it
    does not, the earlier sequence ends, and in the next one the earlier answers are context that nobody learns from.
    """
    last = sequences[-1] if sequences else None
    if last is None or list(prompt_ids[: len(last.token_ids)]) != last.token_ids:
        last = TokenSequence([])
        sequences.append(last)
    last.token_ids = [*prompt_ids, *output_ids]
    last.produced.append((len(prompt_ids), len(last.token_ids)))
    last.turns.append(turn)
    last.messages = list(messages)
