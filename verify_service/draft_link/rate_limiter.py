"""Limits what a drafter may cause: a token bucket of replies, and one of the tokens that it makes us send again.

A flood of replies ends the attachment; requests to open slots wait for their turn.
"""

from __future__ import annotations

from slipstream.rpc.errors import InvalidArgumentError

REPLIES_PER_RECORD = 4
BURST_PER_SLOT = 16
BYTES_PER_REPLY = 2048
"""A message counts as one reply for each of these bytes, or for each reply it holds, whichever is more."""
OPENED_AT_ONCE = 1 << 16
"""Size of the bucket of tokens: requests opened in the middle at once are some milliseconds' work."""
OPENED_PER_STEP = 64
"""Tokens added for each step of each request."""


class ReplyRateLimiter:
    """Two token buckets of one attachment: replies that may still come, and tokens of requests that may be reopened.

    A correct drafter answers each record once or twice and never runs out of replies.
    """

    __slots__ = ("_limit", "_replies_left", "_tokens_left")

    def __init__(self, num_slots: int) -> None:
        self._limit = self._replies_left = BURST_PER_SLOT * num_slots
        self._tokens_left = OPENED_AT_ONCE

    def refill(self, records: int) -> None:
        """Add the replies that `records` sent to the drafter allow."""
        self._replies_left = min(self._limit, self._replies_left + REPLIES_PER_RECORD * records)

    def consume(self, replies: int, size: int) -> None:
        """Take a message of `size` bytes from the bucket. InvalidArgumentError if it is one too many."""
        self._replies_left -= max(1, replies, size // BYTES_PER_REPLY)
        if self._replies_left < 0:
            raise InvalidArgumentError("more replies than the records they answer allow")

    def refill_tokens(self) -> None:
        """Add the tokens that one step of one request allows."""
        if self._tokens_left < OPENED_AT_ONCE:
            self._tokens_left = min(OPENED_AT_ONCE, self._tokens_left + OPENED_PER_STEP)

    def try_reopen(self, tokens: int) -> bool:
        """Take the tokens of a request to be opened in the middle; False if it has to wait.

        A request of any length is opened while the bucket is not empty: it then owes the rest.
        """
        if self._tokens_left <= 0:
            return False
        self._tokens_left = max(self._tokens_left - tokens, -OPENED_AT_ONCE)
        return True
