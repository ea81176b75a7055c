"""Which hidden states the drafter of one slot wants, and how far they were sent."""

from __future__ import annotations

from dataclasses import dataclass

from verify_service.hidden_states.rows import HiddenStateRows


@dataclass(slots=True, eq=False)
class StateFeed:
    """Hidden states for one generation of a slot, in ascending positions without holes. Implements `RingReader`.

    states  |-- sent, or not kept ---|-- to be sent --|
            0                    sent_until      base_length - 1
    """

    boundaries: tuple[int, ...] = ()
    """Boundaries whose hidden states the drafter wants, in its order; () if it wants none."""
    required: bool = False
    """Whether the drafter makes no tree while hidden states of older tokens are missing."""
    sent_until: int = 0
    """First position whose hidden states were not sent; those before it were sent, or never will be."""

    def lacks(self, base_length: int) -> bool:
        """Return whether the drafter makes no tree at this length, as states of tokens before the last are missing."""
        return self.required and self.sent_until < base_length - 1

    def continued_by(self, rows: HiddenStateRows | None) -> HiddenStateRows | None:
        """Return these rows if the drafter wants them and they follow those it was sent, else None."""
        if rows is None or rows.first != self.sent_until or not self.boundaries:
            return None
        return rows if rows.has(self.boundaries) else None

    def num_bytes(self, rows: HiddenStateRows) -> int:
        """Return the bytes of these rows at the wanted boundaries."""
        return 2 * len(self.boundaries) * rows.hidden_size * len(rows)
