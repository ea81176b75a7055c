"""How long a step may wait for trees: a share of what a plain step takes, as measured."""

from __future__ import annotations

from collections import deque
from statistics import median

from verify_service.core.draft_source import WaitUrgency

FIRST_SECONDS = 0.001
"""The deadline before any step was measured."""
SAVED_SHARE = 0.75
"""Of the time that trees save, how much a step may wait for them."""
MIN_MEAN_ACCEPTED = 0.25
"""Of trees that requests which insist on them wait for at length."""
MARGIN = 1.5
"""How much longer than it usually takes a slow drafter is waited for."""
_RECENT = 32


class DraftDeadline:
    """`limit` seconds, or `share` of a plain step where that is less; without a share the limit alone counts.

    Steps are measured from the moment their trees are settled to the commit of their tokens. Those that had no trees
    are plain ones; while there were none, the quickest of the others stands for them. Times are those of one clock.
    Trees that have shown what they bring are worth longer waits: most of the time that they save on average, so that
    only what goes wrong is cut short. Whether they are worth what they usually cost is for the node budget to say.

    With a `reach` the limit gives way, where that holds up nobody who wants no trees, to drafters that usually take
    longer: they are given up after `MARGIN` times what they usually take, within `reach` seconds and the same part of
    the time saved. Requests that insist on trees wait for them whatever that saves, if they bring `MIN_MEAN_ACCEPTED`.
    """

    __slots__ = ("_begun", "_drafted", "_limit", "_plain", "_reach", "_share", "_usual")

    def __init__(self, limit: float, share: float | None, reach: float | None = None) -> None:
        self._limit = limit
        self._share = share
        self._reach = reach
        self._plain: deque[float] = deque(maxlen=_RECENT)
        self._drafted: deque[float] = deque(maxlen=_RECENT)
        self._begun: tuple[float, bool] | None = None
        self._usual: float | None = None
        """the median of plain steps, until there is another one"""

    @property
    def seconds(self) -> float:
        """The longest wait of a step now."""
        if self._share is None:
            return self._limit
        if self._plain:
            return min(self._limit, self._share * self._usually)
        return min(self._limit, self._share * min(self._drafted) if self._drafted else FIRST_SECONDS)

    def seconds_for(
        self, mean_accepted: float, usual: float | None = None, haste: WaitUrgency = WaitUrgency.HURRIED
    ) -> float:
        """Return the longest wait for trees that bring `mean_accepted` tokens each and usually take `usual` seconds."""
        least = self.seconds
        if self._share is not None:
            return min(self._limit, max(least, self._worth(mean_accepted)))
        if self._reach is None or usual is None or haste is WaitUrgency.HURRIED:
            return least
        insists = haste is WaitUrgency.INSISTENT and mean_accepted >= MIN_MEAN_ACCEPTED
        most = self._reach if insists else min(self._reach, self._worth(mean_accepted))
        return max(least, min(MARGIN * usual, most)) if usual <= most else least

    def seconds_behind(self, mean_accepted: float, usual: float | None = None) -> float:
        """As `seconds_for`, of trees that a step under way has rows for already.

        Without trees these rows are computed in vain: a wait is worth what the tokens are that trees bring. Before any
        step was measured it ends at the limit: a first round in vain would have the second one be doubted.
        """
        if self._share is None:
            return self.seconds_for(mean_accepted, usual)
        if not (self._plain or self._drafted):
            return self._limit
        brings = SAVED_SHARE * mean_accepted * self._usually if self._plain else 0.0
        return min(self._limit, max(self.seconds, brings))

    def _worth(self, mean_accepted: float) -> float:
        """What trees that bring so much save, as far as a step may wait for that; 0 before that is known."""
        if not (self._plain and mean_accepted > 0.0):
            return 0.0
        plain = self._usually
        return SAVED_SHARE * ((1.0 + mean_accepted) * plain - max(plain, median(self._drafted or self._plain)))

    def step_begins(self, now: float, *, plain: bool) -> None:
        """A step goes on with the trees it got, or with none at all."""
        self._begun = now, plain

    def step_ends(self, now: float) -> None:
        """Its tokens are there. Without effect if none has begun."""
        if self._begun is not None:
            begun, plain = self._begun
            (self._plain if plain else self._drafted).append(now - begun)
            self._begun = None
            if plain:
                self._usual = None

    def step_lost(self) -> None:
        """No tokens of the step that has begun will come: nobody is left to whom they would belong."""
        self._begun = None

    @property
    def _usually(self) -> float:
        if self._usual is None:
            self._usual = median(self._plain)
        return self._usual
