"""Whom a hybrid asks where its members together would take longer than there is time.

They draft one after the other, in one thread, and what comes late is of no use, the quick members' guesses included. So
those that had most tokens right lately are asked first, as long as time is left. What a member takes is estimated as
round trips are (RFC 6298), by mean and mean deviation, and for few and many requests apart. One that is left out is
believed to be a little quicker each time, so that it is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

SHARE = 0.8
"""Of the time that there is, for drafting; the rest is for the way there and back."""
_SAFETY = 2.0
"""Mean deviations above the mean that a member may take."""
_RETRY = 1.0 / 128
"""By which part one that is left out is believed to be quicker each time."""
_RECENT = 1.0 / 32
"""What one state weighs in the mean of right tokens."""


@dataclass(slots=True)
class _Latency:
    """Seconds that a call takes, and how far it is off on average."""

    mean: float
    deviation: float

    @property
    def most(self) -> float:
        return self.mean + _SAFETY * self.deviation

    def observe(self, seconds: float) -> None:
        self.deviation += (abs(seconds - self.mean) - self.deviation) / 4
        self.mean += (seconds - self.mean) / 8

    def forget(self) -> None:
        self.mean *= 1.0 - _RETRY
        self.deviation *= 1.0 - _RETRY


class MemberTimer:
    """What members of a hybrid take, and what they bring."""

    def __init__(self) -> None:
        self._times: dict[str, dict[int, _Latency]] = {}
        self._right: dict[str, float] = {}

    def choose(self, members: Sequence[str], requests: int, seconds: float) -> list[str]:
        """Those of the members that are asked about so many requests, in order; at least one of several."""
        limit = SHARE * seconds
        most = {member: self._most(member, requests) for member in members}
        if sum(most.values()) <= limit:
            return list(members)
        chosen: set[str] = set()
        for member in sorted(members, key=lambda member: -self._right.get(member, inf)):
            if most[member] <= limit:
                limit -= most[member]
                chosen.add(member)
        chosen = chosen or {min(members, key=lambda member: most[member])}
        for member in set(members) - chosen:
            for usual in self._times.get(member, {}).values():
                usual.forget()
        return [member for member in members if member in chosen]

    def drafted(self, member: str, trees: int, seconds: float) -> None:
        """A member made so many trees in one call."""
        if trees:
            times = self._times.setdefault(member, {})
            usual = times.setdefault(trees.bit_length(), _Latency(seconds, seconds / 4))
            usual.observe(seconds)

    def proved(self, member: str, tokens: int) -> None:
        """A member that was asked about a state had so many tokens right."""
        mean = self._right.setdefault(member, float(tokens))
        self._right[member] = mean + _RECENT * (tokens - mean)

    def _most(self, member: str, requests: int) -> float:
        """What it takes for so many requests, nothing where that is unknown; for fewer than were measured a share."""
        times = self._times.get(member)
        if not times:
            return 0.0
        size = requests.bit_length()
        measured = min(times, key=lambda each: abs(each - size))
        return times[measured].most * min(1.0, 2.0 ** (size - measured))
