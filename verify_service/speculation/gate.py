"""Whether requests are drafted for, and when a few of them look whether trees would pay after all."""

from __future__ import annotations

from verify_service.core.load_size import load_size
from verify_service.speculation.draft_time import KEPT_WAITS

REST_AFTER = 8
"""Steps in a row in which no trees pay before drafters are told of few requests only: fewer are a moment's noise.

While none pay, as many pass from one weighing of trees to the next.
"""
OPEN_AFTER = 4
"""Weighings in a row that find that trees pay, at numbers of requests alike, before a pause is over.

As one load ends and the next begins few requests run for some steps; that all are drafted for then, and made ready for
it, costs more than it brings.
"""
PROBE_EVERY, PROBE_STEPS = 128, 2 * KEPT_WAITS
"""Steps from one probe to the next, and of a probe: as many rounds as outvote the waits kept from before."""
READY_BEFORE = 32
"""Steps before a probe from which on drafters of a few requests are told all: states of a prompt take that long."""
PROBE_COST = 0.01
"""Of the time in which no trees pay, what probes may take; those of a drafter that is slow are shorter and rarer."""
BARRED = 1024
"""Steps at most for which what trees cost more than they brought, before they were given up, bars them at that load."""
PROBES_IN_VAIN = 4
"""Probes after each of which, as none found that trees pay, twice as many steps pass between them.

FORGET_FIRST at most: all that is known of costs goes by then, and a probe tells little anew.
"""
FORGET_EARLY, FORGET_FIRST, FORGET_LAST = 64, 1024, 8192
"""Plain steps after which trees of all requests are tried anew, as if little were known of what they cost.

Probes are of few requests, and do not tell what those of all cost. Twice as many pass after each trial in vain, up to
the third number. The first one is that before any trees have paid for long: a start's rounds are the least like others.
"""


class SpeculationGate:
    """Counts the steps in which no trees paid: drafters rest after a few, and probes are due now and then."""

    def __init__(self) -> None:
        self.unprofitable_steps = 0
        """In a row."""
        self._profitable_steps = 0
        """In a row."""
        self._promising = 0
        """Weighings in a row, in a pause, that found that trees pay."""
        self._probe_at = PROBE_EVERY
        """The step of the next probe, counted as `unprofitable_steps`."""
        self._probes = 0
        """In vain, in a row."""
        self._could_pay = True
        """Whether trees may pay if only they are right; where they cannot, no probe is due."""
        self._waited = self._slowed = 0.0
        """Of the last probe, in plain steps: what it waited, and what its steps and those before took longer for it."""
        self._size = 0
        """Of the load, see `load_size`."""
        self._lost = 0.0
        """What trees have cost since they were begun at this size, less what they brought, in plain steps."""
        self._barred, self._barred_size = 0, 0
        """Steps for which there are none at this size and beyond."""
        self._remembered = 0
        """Steps since any trees paid, or what they cost was forgotten."""
        self._forget_after = FORGET_EARLY

    @property
    def paused(self) -> bool:
        """Whether drafting is paused for all requests but those kept ready."""
        return self.unprofitable_steps > REST_AFTER

    @property
    def keeps_ready(self) -> bool:
        """Whether drafters of a few requests are told all, for the sake of a probe that is near or under way."""
        return self._could_pay and self.unprofitable_steps >= self._probe_at - READY_BEFORE

    @property
    def rests(self) -> bool:
        """Whether drafting is paused for all requests, after the next step without trees too."""
        readies = self._could_pay and self.unprofitable_steps + 1 >= self._probe_at - READY_BEFORE
        return self.paused and not (self._promising or readies)

    @property
    def probe_nears(self) -> bool:
        """Whether a probe is so near that those kept ready for it are told of every step."""
        return self._could_pay and self.unprofitable_steps >= self._probe_at - PROBE_STEPS

    @property
    def probing(self) -> bool:
        """Whether this step asks for small trees although none pay."""
        return self._could_pay and self.unprofitable_steps >= self._probe_at

    @property
    def probe_begins(self) -> bool:
        """Whether it is the first such step."""
        return self._could_pay and self.unprofitable_steps == self._probe_at

    @property
    def probe_ends(self) -> bool:
        """Whether a probe is over with the step that is counted next, as it was long or dear enough."""
        dear = self._waited >= PROBE_COST * PROBE_EVERY
        return self.probing and (dear or self.unprofitable_steps + 1 >= self._probe_at + PROBE_STEPS)

    def opens(self, requests: int, *, promising: bool) -> bool:
        """Take in whether trees would pay in the next step, of so many requests; return whether there are to be any."""
        if (size := load_size(requests)) != self._size:
            self._size, self._lost, self._promising = size, 0.0, 0
        promising &= not (self._barred and self._size >= self._barred_size)
        if not self.paused:
            return promising
        self._promising = self._promising + 1 if promising else 0
        return self._promising >= OPEN_AFTER

    def step(self, *, profitable: bool, learned: bool = False) -> bool:
        """Count a step; return whether what trees of all requests cost is to be forgotten.

        learned: a probe that ends has found its drafters to be others than they were, so that one more follows at once.
        """
        if profitable:
            self._pay()
            return False
        self._profitable_steps, ends = 0, self.probe_ends
        self.unprofitable_steps += 1
        self._barred = max(0, self._barred - 1)
        if self.unprofitable_steps == REST_AFTER:
            self._bar()
        if ends and learned:
            self._probe_at = self.unprofitable_steps
        elif ends:
            self._settle()
        self._remembered += 1
        if self._remembered < self._forget_after:
            return False
        self._remembered, self._forget_after = 0, min(2 * self._forget_after, FORGET_LAST)
        return True

    def judge(self, *, could_pay: bool) -> None:
        """Say whether trees may pay if only they are right. As long as they cannot, there is no probe.

        One under way is over with that, and the next one, once they can, comes no sooner than this one is paid for.
        """
        if could_pay and not self._could_pay:
            self._probe_at = max(self._probe_at, self.unprofitable_steps + READY_BEFORE)
        elif not could_pay and self.probing:
            self._settle()
        self._could_pay = could_pay

    def know_costs(self) -> None:
        """Say that a start's rounds need not tell what trees cost: drafters do."""
        self._forget_after = max(self._forget_after, FORGET_FIRST)

    def rest(self) -> None:
        """Pause drafting now, as the load that comes is known to be one at which no trees pay."""
        self.unprofitable_steps = max(self.unprofitable_steps, REST_AFTER + 1)

    def charge(self, steps: float, *, late: bool = False) -> None:
        """Count what a step waited for trees, in plain steps. late: for those of a probe that is over."""
        if self.probing:
            self._waited += steps
        elif late:
            self._probe_at += int(steps / PROBE_COST)
        elif not self.paused:
            self._lost += steps

    def slow(self, steps: float) -> None:
        """Count what a step took longer than a plain one for the sake of trees, less what those brought.

        steps: in plain steps, below 0 where it took less.
        """
        if self.keeps_ready:
            self._slowed += steps
        elif not self.paused:
            self._lost += steps

    def open(self) -> None:
        """Begin to count anew."""
        self.unprofitable_steps = self._remembered = self._promising = 0
        self._probe_at, self._probes = PROBE_EVERY, 0
        self._waited = self._slowed = 0.0

    def _pay(self) -> None:
        """Count a step in which trees pay. A few in a row may be noise, and do not clear what probes have cost."""
        self._promising = 0
        self._profitable_steps += 1
        if self._profitable_steps > REST_AFTER:
            self.open()
            if self._profitable_steps > FORGET_FIRST:
                self._forget_after = FORGET_FIRST
            return
        self._probe_at = max(PROBE_EVERY, self._probe_at - self.unprofitable_steps, self._steps_paid_for())
        self.unprofitable_steps = self._remembered = 0

    def _bar(self) -> None:
        """Have trees that were just given up pay for what they have cost before they are tried again at such a load."""
        steps = min(BARRED, int(self._lost / PROBE_COST))
        self._lost = 0.0
        if steps > self._barred:
            self._barred, self._barred_size = steps, self._size

    def _settle(self) -> None:
        """Settle when the next probe is, as one in vain is over."""
        self._probes += 1
        steps = min(FORGET_FIRST, PROBE_EVERY << self._probes // PROBES_IN_VAIN)
        self._probe_at += max(steps, self._steps_paid_for())

    def _steps_paid_for(self) -> int:
        """Steps in which no trees pay that what the last probe cost is the allowed share of; it counts once."""
        steps = int((self._waited + max(0.0, self._slowed)) / PROBE_COST)
        self._waited = self._slowed = 0.0
        return steps
