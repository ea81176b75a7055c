"""Who may wait where all places are taken, and when it is worth asking again."""

from __future__ import annotations

import time
from collections import deque

from slipstream.rpc.errors import ResourceExhaustedError
from verify_service.core.request_state import RequestState
from verify_service.scheduler.fair_share import FairShare, displaceable

LEAST_RETRY_SECONDS, MOST_RETRY_SECONDS = 1.0, 60.0
_RECENT = 32
"""Ends of requests by which the pace is known."""


class QueuePlaces:
    """The places of requests that run or wait, shared among tenants by weight while all are taken."""

    def __init__(self, places: int, tenants: FairShare) -> None:
        self._places = places
        self._tenants = tenants
        self._ends: deque[float] = deque(maxlen=_RECENT)
        self.displaced = 0
        """Waiting requests refused so far to make room for another tenant's."""

    @property
    def taken(self) -> int:
        return sum(tenant.places for tenant in self._tenants)

    @property
    def full(self) -> bool:
        """Whether another request would be one too many."""
        return self.taken >= self._places

    def freed(self) -> None:
        """A request has ended."""
        self._ends.append(time.monotonic())

    def displace(self, newcomer: RequestState) -> RequestState | None:
        """The request, still queued, that a newcomer takes the place of; None where a place is free.

        ResourceExhaustedError, with the seconds after which to try again, where nobody has to give way.
        """
        if not self.full:
            return None
        tenant = self._tenants.find(newcomer.parameters.tenant)
        places = tenant.places if tenant is not None else 0
        state = displaceable(self._tenants, newcomer.parameters.tenant, places, newcomer.request.weight)
        if state is None:
            waiting = self._tenants.num_waiting
            raise ResourceExhaustedError(
                f"{self.taken - waiting} requests run and {waiting} wait, which is the limit",
                retry_after=self.retry_seconds(),
            )
        self.displaced += 1
        return state

    def refusal(self) -> ResourceExhaustedError:
        """What the request is told that gave up its place."""
        return ResourceExhaustedError(
            "the queue is full, and this tenant held more than its share of it",
            retry_after=self.retry_seconds(),
        )

    def retry_seconds(self) -> float:
        """Seconds in which what waits will have started, at the pace of the latest ends."""
        if len(self._ends) < 2:
            return LEAST_RETRY_SECONDS
        pace = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return min(MOST_RETRY_SECONDS, max(LEAST_RETRY_SECONDS, pace * self._tenants.num_waiting))
