"""Counts of buckets and positions are what a plain count of the values says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slipstream.bucket_counts import BucketCounts, PositionCounts

BOUNDS = (0.5, 1.0, 4.0)


@given(st.lists(st.floats(0, 10)))
def test_a_value_counts_to_the_first_bound_that_is_not_below(values: list[float]) -> None:
    counts = BucketCounts(BOUNDS)
    for value in values:
        counts.observe(value)
    below = [sum(value <= bound for value in values) for bound in (*BOUNDS, float("inf"))]
    assert [sum(counts.counts[: index + 1]) for index in range(len(counts.counts))] == below
    assert counts.total == sum(values)


def test_a_copy_stays_as_it_was() -> None:
    counts = BucketCounts(BOUNDS)
    counts.observe(2.0)
    copy = counts.copy()
    counts.observe(3.0)
    assert (copy.counts, copy.total) == ([0, 0, 1, 0], 2.0)
    assert counts.counts == [0, 0, 2, 0]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_a_position_counts_the_drafts_accepted_as_far(steps: list[tuple[int, int]]) -> None:
    counts = PositionCounts()
    steps = [(drafted, min(drafted, accepted)) for drafted, accepted in steps]
    for step in steps:
        counts.count(*step)
    deepest = max((accepted for _, accepted in steps), default=0)
    assert counts.by_position() == [sum(accepted > depth for _, accepted in steps) for depth in range(deepest)]
    assert counts.drafts == sum(drafted > 0 for drafted, _ in steps)
