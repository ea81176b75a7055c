"""How often levels of drafted trees were accepted: what is known of one request, or of one proposer."""

from __future__ import annotations

from dataclasses import dataclass

FADE = 0.02
"""Of old trees' weight, for each new one: some fifty count."""
MOST_RATE = 0.98
"""How often a level may be taken to be matched."""


@dataclass(slots=True)
class AcceptanceHistory:
    """How often a level was matched once it was reached; old trees fade."""

    tried: float = 0.0
    matched: float = 0.0
    last_accept_length: int = 0
    """Levels matched the last time."""

    def observe(self, tried: int, matched: int) -> None:
        """Take in the levels of one verified tree: those that were reached, and those that were matched."""
        self.last_accept_length = matched
        self.tried += tried - FADE * self.tried
        self.matched += matched - FADE * self.matched

    def expect(self, chance: float) -> None:
        """Take in a level that was not verified, and had been matched with that chance."""
        self.tried += 1.0 - FADE * self.tried
        self.matched += chance - FADE * self.matched

    def fade(self) -> None:
        """Count for half what was seen."""
        self.tried, self.matched = self.tried / 2, self.matched / 2

    def rate(self, prior: float, weight: float = 8.0) -> float:
        """Estimate that starts at `prior`, which counts as `weight` observations."""
        return min(MOST_RATE, (self.matched + weight * prior) / (self.tried + weight))
