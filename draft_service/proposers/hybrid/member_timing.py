"""Chooses the members of a hybrid that fit into the time a verify step waits.

Members draft one after the other on one thread, and a late merged tree is lost as a whole. So members are asked by
recent accepted tokens, best first, while time is left. The seconds of a call are estimated as round trips are
(RFC 6298), by mean and mean deviation, for each doubling of requests. The estimate of a member that is left out decays,
so that the member is tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

SHARE = 0.8
"""Part of the given time that drafting may take; the rest is for the transport."""
_SAFETY = 2.0
"""Mean deviations above the mean that a member is expected to take at most."""
_DECAY = 1.0 / 128
"""Part by which the estimate of a member that was left out falls each time."""
_ACCEPTED_WEIGHT = 1.0 / 32
"""Weight of one state in the mean of accepted tokens."""


@dataclass(slots=True)
class _Latency:
    """Mean seconds of a call, and their mean deviation."""

    mean: float
    deviation: float

    @property
    def most(self) -> float:
        return self.mean + _SAFETY * self.deviation

    def observe(self, seconds: float) -> None:
        self.deviation += (abs(seconds - self.mean) - self.deviation) / 4
        self.mean += (seconds - self.mean) / 8

    def forget(self) -> None:
        self.mean *= 1.0 - _DECAY
        self.deviation *= 1.0 - _DECAY


class MemberTimer:
    """Measures the members of a hybrid: seconds a call by number of requests, and accepted tokens a state."""

    def __init__(self) -> None:
        self._times: dict[str, dict[int, _Latency]] = {}
        self._accepted: dict[str, float] = {}

    def choose(self, members: Sequence[str], requests: int, seconds: float) -> list[str]:
        """Return the members to ask for `requests` trees within `seconds`, in order; at least one of several."""
        limit = SHARE * seconds
        most = {member: self._most(member, requests) for member in members}
        if sum(most.values()) <= limit:
            return list(members)
        chosen: set[str] = set()
        for member in sorted(members, key=lambda member: -self._accepted.get(member, inf)):
            if most[member] <= limit:
                limit -= most[member]
                chosen.add(member)
        chosen = chosen or {min(members, key=lambda member: most[member])}
        for member in set(members) - chosen:
            for latency in self._times.get(member, {}).values():
                latency.forget()
        return [member for member in members if member in chosen]

    def record_call(self, member: str, trees: int, seconds: float) -> None:
        """Record a call in which a member made `trees` trees."""
        if trees:
            times = self._times.setdefault(member, {})
            latency = times.setdefault(trees.bit_length(), _Latency(seconds, seconds / 4))
            latency.observe(seconds)

    def record_accepted(self, member: str, tokens: int) -> None:
        """Record the tokens accepted from a member's tree for one state; 0 where it made none."""
        mean = self._accepted.setdefault(member, float(tokens))
        self._accepted[member] = mean + _ACCEPTED_WEIGHT * (tokens - mean)

    def _most(self, member: str, requests: int) -> float:
        """Return the seconds a call takes at most, 0 where unmeasured; scaled from the nearest measured size."""
        times = self._times.get(member)
        if not times:
            return 0.0
        size = requests.bit_length()
        measured = min(times, key=lambda each: abs(each - size))
        return times[measured].most * min(1.0, 2.0 ** (size - measured))
