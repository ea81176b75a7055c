"""Log-probabilities of a prompt's tokens, kept as arrays: a long prompt has millions of them."""

from __future__ import annotations

from array import array
from dataclasses import dataclass


@dataclass(slots=True)
class PromptLogprobs:
    """Natural logarithms, of tokens of a prompt that follow one another.

    `first` is the place of the first of them in the prompt; its own first token has none. By token are `logprobs` (f)
    and `ranks` (I), 1 being the most likely; `top_ids` (I) and `top_logprobs` (f) have `top` entries a token, the most
    likely first.
    """

    first: int
    logprobs: array[float]
    ranks: array[int]
    top: int
    top_ids: array[int]
    top_logprobs: array[float]

    @property
    def end(self) -> int:
        """Place in the prompt of the token behind them."""
        return self.first + len(self.logprobs)

    def since(self, place: int) -> PromptLogprobs | None:
        """Those from a place in the prompt on; None where there are none."""
        skipped = place - self.first
        if skipped <= 0:
            return self
        if place >= self.end:
            return None
        entries = skipped * self.top
        return PromptLogprobs(
            place,
            self.logprobs[skipped:],
            self.ranks[skipped:],
            self.top,
            self.top_ids[entries:],
            self.top_logprobs[entries:],
        )

    def extend(self, behind: PromptLogprobs) -> None:
        """Add those that follow."""
        assert (behind.first, behind.top) == (self.end, self.top)
        self.logprobs += behind.logprobs
        self.ranks += behind.ranks
        self.top_ids += behind.top_ids
        self.top_logprobs += behind.top_logprobs
