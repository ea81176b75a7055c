"""How many replies a drafter may send: in proportion to what it was sent, so that a flood ends by itself."""

from __future__ import annotations

from slipstream.rpc.errors import InvalidArgumentError

REPLIES_PER_RECORD = 4
BURST_PER_SLOT = 16
BYTES_PER_REPLY = 2048
"""A message counts as one reply for each of these bytes, or for each reply it holds, whichever is more."""


class Allowance:
    """Replies that may still come. A correct drafter answers each record once or twice and never runs out."""

    __slots__ = ("_left", "_limit")

    def __init__(self, num_slots: int) -> None:
        self._limit = self._left = BURST_PER_SLOT * num_slots

    def earn(self, records: int) -> None:
        """Records were sent to the drafter."""
        self._left = min(self._limit, self._left + REPLIES_PER_RECORD * records)

    def spend(self, replies: int, size: int) -> None:
        """A message of `size` bytes has come. InvalidArgumentError if it is one too many."""
        self._left -= max(1, replies, size // BYTES_PER_REPLY)
        if self._left < 0:
            raise InvalidArgumentError("more replies than the records they answer allow")
