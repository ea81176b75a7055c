"""What steps were expected to yield when trees were asked for them, beside what they would yield without."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Forecast:
    """Sums over the steps of requests whose trees are as large as pays, from the start on. The loop's thread writes.

    drafted_steps: those of `steps` whose trees were to pay; the others, probes among them, count as plain ones.
    tokens, seconds: of all these steps, with the wait for trees. plain_tokens, plain_seconds: the same without trees.
    """

    steps: int = 0
    drafted_steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    plain_tokens: float = 0.0
    plain_seconds: float = 0.0

    def add(self, requests: int, plain: float, promised: tuple[float, float] | None = None) -> None:
        """One step of so many requests, of `plain` seconds without trees; promised: tokens and seconds with them."""
        tokens, seconds = promised or (requests, plain)
        self.steps += 1
        self.drafted_steps += promised is not None
        self.tokens += tokens
        self.seconds += seconds
        self.plain_tokens += requests
        self.plain_seconds += plain

    def gain_since(self, before: Forecast) -> float | None:
        """How many times as fast as plain decoding the steps since were to be; None where there were none."""
        seconds, plain_seconds = self.seconds - before.seconds, self.plain_seconds - before.plain_seconds
        tokens, plain_tokens = self.tokens - before.tokens, self.plain_tokens - before.plain_tokens
        if self.steps == before.steps or seconds <= 0 or plain_seconds <= 0:
            return None
        return tokens / seconds * plain_seconds / plain_tokens
