"""How many replicas there should be, by what waits, for how long, and which pages are free."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

USUAL_LOAD: Final = 0.7
"""Part of the requests that a replica decodes together up to which it counts as not yet full."""
FEW_PAGES: Final = 0.05
"""Part of a replica's KV pages; when no more are free or evictable, prompts soon wait for them."""
MOST_PAGES: Final = 0.8
"""Part of the KV pages of the replicas that would be left which requests may hold for one replica to go."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """Bounds and delays, in the shape of Ray Serve's.

    least, most: replicas; equal: no scaling.
    target_requests: running and waiting requests a replica; 0: `USUAL_LOAD` of what it decodes together.
    longest_wait: seconds that the oldest request may wait before that alone asks for another replica.
    upscale_delay, downscale_delay: seconds for which more, or fewer, must be asked for without a break.
    look_back: seconds over which requests are averaged.
    standby: replicas beside those that serve whose processes are started but for the model, where there is room.
    """

    least: int = 1
    most: int = 1
    target_requests: float = 0.0
    longest_wait: float = 5.0
    upscale_delay: float = 30.0
    downscale_delay: float = 600.0
    look_back: float = 30.0
    standby: int = 0

    def __post_init__(self) -> None:
        """ValueError for bounds that exclude each other."""
        if not 1 <= self.least <= self.most:
            raise ValueError(f"there must be 1 replica at least, and no more at least than at most: "
                             f"{self.least} to {self.most}")  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """For the controller's memory."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """What `to_json` made."""
        return cls(**value)


@dataclass(frozen=True, slots=True)
class Load:
    """What a replica's verify service does at the moment. `capacity`: requests that it decodes together.

    oldest_wait: seconds since the oldest queued request came.
    """

    running: int = 0
    queued: int = 0
    oldest_wait: float = 0.0
    pages_total: int = 0
    pages_idle: int = 0
    capacity: int = 1

    @property
    def requests(self) -> int:
        """Running and queued."""
        return self.running + self.queued

    @property
    def short_of_pages(self) -> bool:
        """Whether hardly any KV pages are free or evictable."""
        return self.pages_idle < FEW_PAGES * self.pages_total


class Autoscaler:
    """Follows the load of all replicas. Times are seconds of one clock, which the caller reads."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling = scaling
        self._seen: deque[tuple[float, int]] = deque()
        self._more_since: float | None = None
        self._fewer_since: float | None = None
        self._most_asked = 0

    def wanted(self, now: float, current: int, loads: Sequence[Load]) -> int:
        """How many replicas there should be, where `current` were wanted and these loads are of those that serve."""
        scaling = self.scaling
        current = min(scaling.most, max(scaling.least, current))
        if scaling.least == scaling.most or not loads:
            return current
        asked = min(scaling.most, max(scaling.least, self._asked(now, current, loads)))
        self._more_since = (now if self._more_since is None else self._more_since) if asked > current else None
        if asked >= current:
            self._fewer_since, self._most_asked = None, 0
        else:
            self._fewer_since = now if self._fewer_since is None else self._fewer_since
            self._most_asked = max(self._most_asked, asked)
        if self._more_since is not None and now >= self._more_since + scaling.upscale_delay:
            self._more_since = None
            return asked
        if self._fewer_since is not None and now >= self._fewer_since + scaling.downscale_delay:
            asked, self._fewer_since, self._most_asked = self._most_asked, None, 0
            return asked
        return current

    def _asked(self, now: float, current: int, loads: Sequence[Load]) -> int:
        """What the load of this moment asks for, whatever the bounds."""
        self._seen.append((now, sum(load.requests for load in loads)))
        while self._seen[0][0] < now - self.scaling.look_back:
            self._seen.popleft()
        requests = sum(count for _, count in self._seen) / len(self._seen)
        capacity = sum(load.capacity for load in loads) / len(loads)
        asked = math.ceil(requests / (self.scaling.target_requests or USUAL_LOAD * capacity))
        pressed = any(load.oldest_wait > self.scaling.longest_wait for load in loads)
        if pressed or all(load.queued or load.short_of_pages for load in loads):
            return max(asked, current + 1)
        return next((count for count in range(asked, current) if self._fits(loads, count)), max(asked, current))

    @staticmethod
    def _fits(loads: Sequence[Load], replicas: int) -> bool:
        """Whether so many replicas would hold what requests hold of all pages, and nothing waits."""
        total = sum(load.pages_total for load in loads)
        held = total - sum(load.pages_idle for load in loads)
        return not any(load.queued for load in loads) and held <= MOST_PAGES * total * replicas / len(loads)
