"""When each part of a round began and ended: what verify asks of the draft link, and what the proposer reports."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.boundary.link import Span


@dataclass(frozen=True, slots=True)
class Round:
    """Seconds of the parts of one round in lockstep, one after the other.

    `verify` from the trees' arrival to the step's decision, with the launch, the pass and its results' way to the host;
    `to_draft` until the proposer is asked; `drafting` until it answers; `back` until the trees are checked and with the
    step.
    """

    verify: float
    to_draft: float
    drafting: float
    back: float


def rounds(commits: Sequence[Span], collections: Sequence[Span], drafted: Sequence[Span], window: Span) -> list[Round]:
    """The rounds within a window of time that had one call for trees between a commit and the collection after it."""
    found: list[Round] = []
    collected = [end for _, end in collections]
    asked = [begin for begin, _ in drafted]
    for (begin, _), (after, _) in pairwise(commits):
        if begin < window[0] or after > window[1]:
            continue
        at = bisect_left(collected, begin)
        first, last = bisect_left(asked, begin), bisect_left(asked, after)
        if at < len(collected) and collected[at] <= after and last - first == 1:
            asked_at, answered = drafted[first]
            got = collected[at]
            found.append(Round(after - got, asked_at - begin, answered - asked_at, got - answered))
    return found


def lengths(spans: Sequence[Span], window: Span) -> list[float]:
    """Seconds of those that began within a window of time."""
    return [end - begin for begin, end in spans if window[0] <= begin <= window[1]]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that so large a share of all is not above; None of none."""
    return sorted(values)[int(share * (len(values) - 1))] if values else None


def median(values: Sequence[float]) -> float | None:
    """None of none."""
    return statistics.median(values) if values else None
