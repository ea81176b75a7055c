"""What a drafter may cause: replies in proportion to the records it was sent, and so much of what it asks to be opened.

A flood of replies ends by itself; requests to open slots wait until it is their turn.
"""

from __future__ import annotations

from slipstream.rpc.errors import InvalidArgumentError

REPLIES_PER_RECORD = 4
BURST_PER_SLOT = 16
BYTES_PER_REPLY = 2048
"""A message counts as one reply for each of these bytes, or for each reply it holds, whichever is more."""
OPENED_AT_ONCE = 1 << 16
"""Tokens of requests that are opened in the middle at once: some milliseconds' work."""
OPENED_PER_STEP = 64
"""Tokens more for each step of each request."""


class ReplyRateLimiter:
    """Replies that may still come, and tokens that may be told again.

    A correct drafter answers each record once or twice and never runs out of replies. One that drafts ahead may send
    `ahead` trees more.
    """

    __slots__ = ("_left", "_limit", "_per_record", "_tokens")

    def __init__(self, num_slots: int, ahead: int = 0) -> None:
        self._limit = self._left = (BURST_PER_SLOT + ahead) * num_slots
        self._per_record = REPLIES_PER_RECORD + ahead
        self._tokens = OPENED_AT_ONCE

    def earn(self, records: int) -> None:
        """Records were sent to the drafter."""
        self._left = min(self._limit, self._left + self._per_record * records)

    def spend(self, replies: int, size: int) -> None:
        """A message of `size` bytes has come. InvalidArgumentError if it is one too many."""
        self._left -= max(1, replies, size // BYTES_PER_REPLY)
        if self._left < 0:
            raise InvalidArgumentError("more replies than the records they answer allow")

    def step(self) -> None:
        """A request of the drafter has gone a step further."""
        self._tokens = min(OPENED_AT_ONCE, self._tokens + OPENED_PER_STEP)

    def opens(self, tokens: int) -> bool:
        """Whether a request of so many tokens is opened in the middle now, which one of any length is at its turn."""
        if self._tokens <= 0:
            return False
        self._tokens = max(self._tokens - tokens, -OPENED_AT_ONCE)
        return True
