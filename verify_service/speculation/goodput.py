"""How many drafted rows a step is worth: expected tokens against measured time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slipstream_kernels.draft_protocol.records import RoundCost
from slipstream_kernels.level_choice import best_levels
from verify_service.core.acceptance_history import MOST_RATE, AcceptanceHistory
from verify_service.core.load_size import load_size
from verify_service.core.step_time_model import FAST, Floats, StepTimeModel
from verify_service.speculation.acceptance_model import AcceptanceModel
from verify_service.speculation.draft_time import DraftTimeModel
from verify_service.speculation.forecast import Forecast
from verify_service.speculation.gate import READY_BEFORE, REST_AFTER, SpeculationGate
from verify_service.speculation.node_selection import LEAST_GAIN

Ints = NDArray[np.int64]

MAX_LEVELS = 16
_LEVELS = np.arange(1, MAX_LEVELS + 1)[:, None]
_NOTHING_OFFERED = np.empty(0), np.empty(0, np.int64), np.empty(0), np.empty(0), 1.0, 1.0
PROBE_LEVELS = 2
"""Of a probe's trees: the second tells how often a level is right below one that was."""
_START_GAIN = 1.03
"""Times plain throughput that trees must promise before there are any: who begins has first to catch up."""
MANY_LATE = 0.25
"""Of a step's requests, how many may be catching up, as new ones always are, for its wait to count as any other."""
_LATE = 0.5
"""Share of the newest wait in what steps wait then: there are few of them, and each is long."""
_LEAST_CHANCE = 0.02
"""Of levels that are considered."""


@dataclass(frozen=True, slots=True)
class DepthCandidate:
    """A request that wants a tree: what became of earlier ones, the deepest path it may have, and who drafts for it."""

    history: AcceptanceHistory
    max_levels: int
    proposer: str = ""


@dataclass(slots=True)
class _Memo:
    """Memoised choice: its candidates, requests and other nodes, the estimates behind it, and the depths granted.

    promised: tokens of the step with these trees, and its seconds, the wait for them included; None without any.
    """

    candidates: Sequence[DepthCandidate] = ()
    requests: int = 0
    nodes: int = 0
    facts: object = None
    granted: list[int] = field(default_factory=list)
    promised: tuple[float, float] | None = None


class GoodputOptimizer:
    """Chooses how deep each request's next tree may be, so that tokens per second are highest.

    Level i of a request is expected to yield rate^i tokens and to cost its nodes' share of a verify pass; asking
    for trees at all costs the wait for them, which grows with the deepest. Levels of all requests compete, best
    first. Where none is worth its cost the step is plain, unless the gate wants a short probe whether that has changed.
    """

    def __init__(self, costs: StepTimeModel, acceptance: AcceptanceModel) -> None:
        self.step_time = costs
        self.acceptance = acceptance
        self.draft_time = DraftTimeModel(costs)
        self.gate = SpeculationGate()
        self.forecast = Forecast()
        self._presence = 1.0
        self._late_wait = 0.0
        """Seconds of a wait for trees of drafters that are busy with the states of many others."""
        self._idle = 0.0
        """Of an engine before a step without trees, in such steps, while none are wanted."""
        self.takes_whole = False
        """Whether steps verify trees as they are drafted, be they of many requests."""
        self._nodes_per_level: dict[int, float] = {}
        """By `load_size` of the requests in the step: the more there are, the fewer nodes pay."""
        self._most_levels: dict[str, int] = {}
        """Of trees, by proposer."""
        self._memos = _Memo(), _Memo()
        """Last inputs and results of `choose_depths`: of its candidates, and of these with `others`."""
        self._chosen = False
        """Whether depths were chosen since the last `prepare`."""
        best_levels(*_NOTHING_OFFERED)  # is compiled, so that no step waits for it
        self.is_profitable = True
        """Whether the last depths, those of `others` included, raised goodput; probes grant depths regardless."""

    def nodes_per_level(self, requests: int, at_first: float = 1.0) -> float:
        """Nodes that were worth it for each level of a tree in steps of about so many requests, at first `at_first`."""
        return self._nodes_per_level.get(load_size(requests), at_first)

    def _priced_nodes(self, requests: int) -> float:
        """Those of a level that the step's time is of: one at least, where trees are verified whole."""
        nodes = self.nodes_per_level(requests)
        return max(1.0, nodes) if self.takes_whole and requests > 1 else nodes

    def _passes(self, requests: int, nodes: int, per_level: float, presence: float, levels: int) -> Floats:
        """Seconds of steps with 1, 2, ... `levels` levels, each present by chance, beside `nodes` other nodes."""
        drafted = presence * np.arange(1.0, levels + 1)
        experts = self.step_time.experts
        awake = None if experts is None else nodes + experts.of_level(per_level) * drafted
        return self.step_time.predict(requests, nodes + per_level * drafted, awake)

    def learn_drafter(self, proposer: str, costs: Sequence[RoundCost], most_levels: int) -> None:
        """Take in what a proposer's drafter says: what rounds take, if it does, and how deep trees are, or 0."""
        self._most_levels[proposer] = most_levels or MAX_LEVELS
        self.draft_time.learn_costs(proposer, costs)
        if self.draft_time.knows_costs:
            self.gate.know_costs()

    def observe_nodes(self, running: int, *, nodes: int, depth: int) -> None:
        """Take in what of a tree was worth its rows in a step of `running` requests; of one alone, the first is all."""
        before = self.nodes_per_level(running, nodes / depth if running == 1 else 1.0)
        self._nodes_per_level[load_size(running)] = before + FAST * (nodes / depth - before)

    def observe_pass(
        self,
        requests: int,
        nodes: int,
        seconds: float,
        context: float,
        drafted: int = 0,
        awake: float | None = None,
    ) -> None:
        """Take in a pass of requests with so many tokens each before them, in which `drafted` tokens were output.

        awake: as of `StepTimeModel.predict`. What passes take longer as drafters are made ready for a probe is the
        probe's price, not theirs.
        """
        if nodes or self.gate.keeps_ready:
            self.gate.slow(self.step_time.excess(requests, seconds) - drafted / requests)
        if nodes or not self.gate.keeps_ready:
            self.step_time.observe(requests, nodes, seconds, context, awake)

    def observe_idle(self, requests: int, seconds: float) -> None:
        """Take in what an engine idled before a step that waited for no trees; once as long as it takes at most."""
        idle = min(1.0, seconds / self.step_time.seconds(requests))
        if self.gate.keeps_ready or not self.gate.paused:
            self.gate.slow(idle - self._idle)
        else:
            self._idle += FAST * (idle - self._idle)

    def observe_wait(
        self,
        seconds: float,
        *,
        asked: int,
        arrived: int,
        levels: int,
        running: int = 0,
        behind: bool = False,
        catching_up: bool = False,
        of_probe: bool = False,
    ) -> None:
        """Take in the wait for trees: `arrived` of `asked` came, the deepest with `levels` levels.

        `running` requests shared the step, those that asked among them. behind: as of `DraftTimeModel.observe`.
        catching_up: the drafter was busy with the states of many of them, so that the wait is no price of trees later.
        of_probe: a probe asked, which may be over as its last wait is told.
        """
        running = max(running, asked)
        self._presence += FAST * asked / running * (arrived / asked - self._presence)
        if catching_up:
            self._late_wait += _LATE * (seconds - self._late_wait)
        else:
            came = arrived > 0
            self.draft_time.observe(seconds, asked=asked, running=running, levels=levels, behind=behind, came=came)
        self.gate.charge(seconds / self.step_time.seconds(running), late=of_probe)

    def choose_depths(
        self,
        candidates: Sequence[DepthCandidate],
        requests: int,
        others: Sequence[DepthCandidate] = (),
        *,
        nodes: int = 0,
    ) -> list[int]:
        """Return the depth granted to each candidate; the step has `requests`, and `nodes` besides those granted here.

        `others` cannot have any yet: none are granted unless it would pay for all of them together too, and while
        they are many, unless those granted are worth the longer wait.
        """
        self._chosen = True
        self.draft_time.count_step()
        self.draft_time.proposers = {candidate.proposer for candidate in candidates}
        own, whole = self._memos
        granted = self._choose(own, candidates, requests, nodes)
        promising = any(self._choose(whole, (*candidates, *others), requests, nodes)) if others else any(granted)
        self.is_profitable = self.gate.opens(max(requests, 1), promising=promising)
        asking = len(candidates) + len(others)
        plain = self.step_time.seconds(max(requests, 1), nodes)
        promised = own.promised if self.is_profitable else None
        if (
            promised is not None
            and len(others) > MANY_LATE * requests
            and not self._is_worth_late(promised, requests, plain)
        ):
            granted, promised = [0] * len(candidates), None
        if asking:
            self.forecast.add(max(requests, 1), plain, promised)
        if asking and not self.is_profitable and not self.gate.unprofitable_steps % REST_AFTER:
            self.gate.judge(could_pay=self._could_pay(asking, max(requests, 1), nodes))
        learned = self.gate.probe_ends and self.acceptance.has_learned()
        if self.gate.step(profitable=self.is_profitable, learned=learned):
            self._forget()
        if self.is_profitable:
            return list(granted)
        if self.gate.probe_begins:
            self.acceptance.begin_probe()
        levels = PROBE_LEVELS if self.gate.probing else 0
        return [min(levels, candidate.max_levels) for candidate in candidates]

    def _is_worth_late(self, promised: tuple[float, float], requests: int, plain: float) -> bool:
        """Whether a step's trees are worth the wait while many others catch up; each time that they are not it is
        taken to be a little shorter, as it is not seen again.
        """
        tokens, seconds = promised
        worth = tokens * plain >= _START_GAIN * requests * (seconds + self._late_wait)
        if not worth:
            self._late_wait *= 1 - FAST / 4
        return worth

    def rests(self, requests: int) -> bool:
        """Decide that one more step of as many requests has no trees, unless they are to be weighed anew for it.

        While nobody asks, little changes of what decides but the time of passes.
        """
        if not (self.gate.rests and self.gate.unprofitable_steps % READY_BEFORE):
            return False
        self.draft_time.count_step()
        self.forecast.add(requests, self.step_time.seconds(requests))
        if self.gate.step(profitable=False):
            self._forget()
        return True

    def would_pay(self, candidate: DepthCandidate, requests: int) -> bool:
        """Whether trees would raise goodput in steps of so many requests that are all like this one."""
        rates = self.acceptance.level_rates([(candidate.history, candidate.proposer)] * requests)
        return bool(len(self._best_levels(rates, [self._depth_of(candidate)] * requests, requests, 0, _START_GAIN)[0]))

    def _depth_of(self, candidate: DepthCandidate) -> int:
        """Of the deepest tree that a request may have, and its proposer makes."""
        return min(candidate.max_levels, self._most_levels.get(candidate.proposer, MAX_LEVELS))

    def prepare(self) -> None:
        """Choose, ahead of the next `choose_depths`, for its last candidates by the newest estimates.

        Nothing where no depths were chosen since: steps of requests without speculation ask for none.
        """
        own, _ = self._memos
        if self._chosen:
            self._chosen = False
            self._choose(own, own.candidates, own.requests, own.nodes)

    def _could_pay(self, asking: int, requests: int, nodes: int) -> bool:
        """Whether trees may pay if they are right as often as any can be.

        True unless rounds take too long for that by their drafters' word and as measured.
        """
        waits = self.draft_time.least_waits(asking, requests, range(1, MAX_LEVELS + 1))
        if waits is None:
            return True
        levels = np.repeat(np.arange(1, MAX_LEVELS + 1), asking)
        passes = self._passes(requests, nodes, 1.0, 1.0, len(levels))
        least = _START_GAIN * requests / self.step_time.seconds(requests, nodes)
        chances: Floats = np.float64(MOST_RATE) ** levels
        return best_levels(chances, levels, passes, np.array(waits), float(requests), least)[0] > 0

    def _forget(self) -> None:
        """What trees cost is known from trees alone: a time in which they cost much must not be the last word."""
        self.draft_time.forget()
        self._nodes_per_level.clear()
        self._presence = 1.0

    def _choose(self, last: _Memo, candidates: Sequence[DepthCandidate], requests: int, nodes: int) -> list[int]:
        """Return the depth of each candidate; memoised while the estimates are unchanged."""
        same_size = (len(candidates), requests, nodes) == (len(last.candidates), last.requests, last.nodes)
        last.candidates, last.requests, last.nodes = candidates, requests, nodes
        if not candidates:
            last.facts, last.granted, last.promised = None, [], None
            return last.granted
        if same_size and not any(last.granted) and self.gate.unprofitable_steps % REST_AFTER:
            return last.granted
        rates = self.acceptance.level_rates([(candidate.history, candidate.proposer) for candidate in candidates])
        most = [self._depth_of(candidate) for candidate in candidates]
        waits = self.draft_time.waits(len(candidates), requests, (1, 2))
        per_level = self._priced_nodes(requests)
        experts = self.step_time.experts
        counted = per_level if experts is None else experts.of_level(per_level)
        known = self._presence, per_level, counted, *waits, *self.step_time.factors
        facts = (rates.tolist(), most, requests, nodes, known)
        if facts != last.facts:
            worth = LEAST_GAIN if any(last.granted) else _START_GAIN
            taken, last.promised = self._best_levels(rates, most, max(requests, 1), nodes, worth)
            last.facts, last.granted = facts, np.bincount(taken, minlength=len(candidates)).tolist()
        return last.granted

    def _best_levels(
        self, rates: Floats, most: Sequence[int], requests: int, nodes: int, worth: float
    ) -> tuple[Ints, tuple[float, float] | None]:
        """Whose levels to take, and what the step promises with them, see `_Memo`.

        These are the likeliest, of those that are not deeper than is worth waiting for. rates, most: [candidates], the
        chance of a level if the one above is right, and how many levels each may have.
        """
        chances, indices, levels = _offered(rates, most)
        if not len(levels):
            return indices, None
        passes = self._passes(requests, nodes, self._priced_nodes(requests), self._presence, len(levels))
        waits = self.draft_time.waits(len(rates), requests, range(1, int(levels.max()) + 1))
        least = worth * requests / self.step_time.seconds(requests, nodes)
        chances = self._presence * chances
        deepest, taken = best_levels(chances, levels, passes, np.array(waits), float(requests), least)
        if not taken:
            return indices[:0], None
        within = levels <= deepest
        tokens = requests + float(chances[within][:taken].sum())
        return indices[within][:taken], (tokens, float(passes[taken - 1]) + waits[deepest - 1])


def _offered(rates: Floats, most: Sequence[int]) -> tuple[Floats, Ints, Ints]:
    """Chances that levels are output, whose, and which: best first; a level never precedes the one above it."""
    chances: Floats = rates**_LEVELS
    places, indices = np.nonzero((chances >= _LEAST_CHANCE) & (np.array(most) >= _LEVELS))
    offered = chances[places, indices]
    order = (-offered).argsort(kind="stable")
    return offered[order], indices[order], places[order] + 1
