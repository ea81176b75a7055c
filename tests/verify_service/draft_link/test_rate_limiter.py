"""A drafter that answers what it is sent never runs out; one that floods soon does."""

from __future__ import annotations

import pytest

from slipstream.rpc.errors import InvalidArgumentError
from verify_service.draft_link.rate_limiter import BURST_PER_SLOT, BYTES_PER_REPLY, REPLIES_PER_RECORD, ReplyRateLimiter


def test_answers_to_records_never_run_out() -> None:
    limiter = ReplyRateLimiter(4)
    for _ in range(1000):
        limiter.refill(4)
        limiter.consume(4 * REPLIES_PER_RECORD, 100)


@pytest.mark.parametrize(("replies", "size"), [(1, 0), (0, 0), (0, BYTES_PER_REPLY), (1, BYTES_PER_REPLY + 7)])
def test_a_flood_ends_after_the_burst(replies: int, size: int) -> None:
    limiter = ReplyRateLimiter(4)
    for _ in range(4 * BURST_PER_SLOT):
        limiter.consume(replies, size)
    with pytest.raises(InvalidArgumentError):
        limiter.consume(replies, size)


def test_what_is_earned_has_a_limit() -> None:
    limiter = ReplyRateLimiter(1)
    limiter.refill(10**6)
    limiter.consume(BURST_PER_SLOT, 0)
    with pytest.raises(InvalidArgumentError):
        limiter.consume(1, 0)
    with pytest.raises(InvalidArgumentError):
        ReplyRateLimiter(1).consume(0, (BURST_PER_SLOT + 1) * BYTES_PER_REPLY)
