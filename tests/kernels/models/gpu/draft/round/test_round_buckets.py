"""Rounds are padded to few sizes, and every round that can be finds one that holds it."""

import pytest

from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_buckets import RoundBuckets


@pytest.mark.parametrize(("depth", "sessions"), [(1, 1), (5, 3), (5, 64), (7, 100)])
def test_every_round_has_a_bucket_that_is_captured(depth, sessions):
    buckets = RoundBuckets(DraftLimits(max_depth=depth, width=8, max_sessions=sessions))
    assert buckets.max_sessions == min(sessions, 64)
    known = set(buckets.all())
    for size in range(1, buckets.max_sessions + 1):
        for rows in {size, size * (depth + 1), (size * (depth + 2) + 1) // 2}:
            for levels in range(1, depth + 1):
                found = buckets.find(size, rows, levels, filtered=False)
                assert found in known
                assert found.sessions >= size and found.levels >= levels
                assert rows <= found.text_rows <= buckets.max_text_rows and found.text_rows % 16 == 0
        assert buckets.find(size, size, depth, filtered=True) in known


def test_rounds_are_not_padded_far():
    buckets = RoundBuckets(DraftLimits(max_depth=5, width=8))
    assert buckets.find(1, 6, 5, filtered=False) == (1, 16, 5, False)
    assert buckets.find(33, 70, 2, filtered=False) == (64, 192, 2, False)
    assert buckets.find(33, 193, 2, filtered=False) == (64, 384, 2, False)
    assert buckets.find(0, 65, 0, filtered=False) == (0, 512, 0, False)
    assert buckets.find(0, 64, 0, filtered=False) == (0, 64, 0, False)


def test_rounds_that_are_too_large():
    buckets = RoundBuckets(DraftLimits(max_depth=2, width=8, max_sessions=4, chunk=32))
    for size, rows, levels, message in (
        (5, 5, 1, "5 sessions"),
        (4, 17, 1, "17 rows"),
        (1, 1, 3, "3 levels"),
        (0, 33, 0, "33"),
    ):
        with pytest.raises(ValueError, match=message):
            buckets.find(size, rows, levels, filtered=False)


@pytest.mark.parametrize(
    ("field", "value"), [("max_depth", 63), ("width", 17), ("max_context", 1), ("max_sessions", 0), ("chunk", 0)]
)
def test_limits(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}, must be from"):
        DraftLimits(**{"max_depth": 5, "width": 8, field: value})
