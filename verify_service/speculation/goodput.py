"""How many drafted rows a step is worth: expected tokens against measured time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from verify_service.core.acceptance import Acceptance
from verify_service.core.step_time_model import Floats, StepTimeModel

Ints = NDArray[np.int64]

MAX_LEVELS = 16
PROBE_EVERY = 512
PROBE_STEPS = 4
PROBE_LEVELS = 2
FORGET_FIRST, FORGET_LAST = 2 * PROBE_EVERY, 16 * PROBE_EVERY
"""Plain steps after which trees of all requests are tried anew, as if little were known of what they cost.

The second number is that of plain steps between trials once several of them were in vain.
"""
WEIGH_EVERY = 8
"""Steps from one weighing to the next while nothing pays."""

_FAST = 0.1
_RECENT = 13
"""Waits of which the middle one counts."""
_FIRST_USES = 2
"""Of a number of requests and levels, by which a drafter may compile or capture what it needs for them."""
_START_GAIN, _CONTINUE_GAIN = 1.1, 1.02
"""Times plain throughput that trees must promise: it is an estimate, and who begins has first to catch up."""
_GUESS = 0.06
"""Passes of one request that a level is waited for, before any wait was measured."""
_AHEAD = 2
"""Levels' worth of time that a drafter takes besides those it drafts, with the way there and back."""
_BATCHED = 8
"""Batch size at which one draft level takes twice its batch-1 time; extrapolates unmeasured batch sizes."""
_LEAST_CHANCE = 0.02
"""Of levels that are considered."""


@dataclass(frozen=True, slots=True)
class DepthCandidate:
    """A request that wants a tree: its acceptance so far and the deepest path it may have."""

    acceptance: Acceptance
    max_levels: int


@dataclass(slots=True)
class _Memo:
    """Memoised choice: its candidates, requests and other nodes, the estimates behind it, and the depths granted."""

    candidates: Sequence[DepthCandidate] = ()
    requests: int = 0
    nodes: int = 0
    facts: object = None
    granted: list[int] = field(default_factory=list)


class GoodputOptimizer:
    """Chooses how deep each request's next tree may be, so that tokens per second are highest.

    Level i of a request is expected to yield rate^i tokens and to cost its nodes' share of a verify pass; asking
    for trees at all costs the wait for them, which grows with the deepest. Levels of all requests compete, best
    first. Where none is worth its cost the step is plain, and now and then a short probe looks whether that has
    changed: `PROBE_STEPS` of `PROBE_EVERY` steps.
    """

    def __init__(self, costs: StepTimeModel) -> None:
        self.step_time = costs
        self._overall = Acceptance(tried=20.0, matched=14.0)
        self._presence = 1.0
        self._nodes_per_level: dict[int, float] = {}
        """By how many bits the number of requests in the step has: the more there are, the fewer nodes pay."""
        self._waits: dict[tuple[int, int], deque[float]] = {}
        """The latest waits in seconds a level of the deepest tree, over `_load` of the requests that asked.

        By how many bits the number of requests in the step has, and of those that asked.
        """
        self._uses: dict[tuple[int, int, int], int] = {}
        """Waits so far, by the keys of `_waits` and by the levels of the deepest tree."""
        self._plain_steps = self._drafted_steps = 0
        """In a row, in which no trees paid, and in which some did."""
        self._remembered = 0
        """Steps since any trees paid, or what they cost was forgotten."""
        self._forget_after = FORGET_FIRST
        self._memos = _Memo(), _Memo()
        """Last inputs and results of `choose_depths`: of its candidates, and of these with `others`."""
        self.is_profitable = True
        """Whether the last depths, those of `others` included, raised goodput; probes grant depths regardless."""

    def nodes_per_level(self, requests: int, at_first: float = 1.0) -> float:
        """Nodes that were worth it for each level of a tree in steps of about so many requests, at first `at_first`."""
        return self._nodes_per_level.get(requests.bit_length(), at_first)

    def observe_tree(self, acceptance: Acceptance, *, depth: int, matched: int) -> None:
        """Take in one verified tree, of which the path of length `matched` was right."""
        tried = min(depth, matched + 1)
        acceptance.observe(tried, matched)
        self._overall.observe(tried, matched)

    def observe_nodes(self, running: int, *, nodes: int, depth: int) -> None:
        """Take in what of a tree was worth its rows in a step of `running` requests; of one alone, the first is all."""
        before = self.nodes_per_level(running, nodes / depth if running == 1 else 1.0)
        self._nodes_per_level[running.bit_length()] = before + _FAST * (nodes / depth - before)

    def observe_wait(self, seconds: float, *, asked: int, arrived: int, levels: int, running: int = 0) -> None:
        """Take in the wait for trees: `arrived` of `asked` came, the deepest with `levels` levels.

        `running` requests shared the step, those that asked among them.
        Of the latest waits the median counts: a graph that is captured, or a process that is held up, is not the price.
        """
        running = max(running, asked)
        self._presence += _FAST * asked / running * (arrived / asked - self._presence)
        key = running.bit_length(), asked.bit_length()
        uses = self._uses[(*key, levels)] = self._uses.get((*key, levels), 0) + 1
        if uses <= _FIRST_USES:
            return
        if key not in self._waits:
            self._waits[key] = deque([self._wait_per_level(asked, running)] * (_RECENT // 2), _RECENT)
        self._waits[key].append(seconds / ((_AHEAD + levels) * _load(asked)))

    def choose_depths(
        self,
        candidates: Sequence[DepthCandidate],
        requests: int,
        others: Sequence[DepthCandidate] = (),
        *,
        nodes: int = 0,
    ) -> list[int]:
        """Return the depth granted to each candidate; the step has `requests`, and `nodes` besides those granted here.

        `others` cannot have any yet: none are granted unless it would pay for all of them together too.
        """
        own, whole = self._memos
        granted = self._choose(own, candidates, requests, nodes)
        self.is_profitable = (
            any(self._choose(whole, (*candidates, *others), requests, nodes)) if others else any(granted)
        )
        if self.is_profitable:
            self._plain_steps = self._remembered = 0
            self._drafted_steps += 1
            if self._drafted_steps > FORGET_FIRST:
                self._forget_after = FORGET_FIRST
            return list(granted)
        self._drafted_steps = 0
        self._plain_steps += 1
        self._remembered += 1
        if self._remembered >= self._forget_after:
            self._forget()
        if self._plain_steps % PROBE_EVERY < PROBE_STEPS and self._plain_steps >= PROBE_EVERY:
            return [min(PROBE_LEVELS, candidate.max_levels) for candidate in candidates]
        return [0] * len(candidates)

    def prepare(self) -> None:
        """Choose, ahead of the next `choose_depths`, for its last candidates by the newest estimates."""
        own, _ = self._memos
        if own.candidates:
            self._choose(own, own.candidates, own.requests, own.nodes)

    def _forget(self) -> None:
        """What trees cost is known from trees alone: a time in which they cost much must not be the last word."""
        self._waits.clear()
        self._nodes_per_level.clear()
        self._presence = 1.0
        self._remembered, self._forget_after = 0, min(2 * self._forget_after, FORGET_LAST)

    def _choose(self, last: _Memo, candidates: Sequence[DepthCandidate], requests: int, nodes: int) -> list[int]:
        """Return the depth of each candidate; memoised while the estimates are unchanged."""
        same_size = (len(candidates), requests, nodes) == (len(last.candidates), last.requests, last.nodes)
        last.candidates, last.requests, last.nodes = candidates, requests, nodes
        if same_size and not any(last.granted) and self._plain_steps % WEIGH_EVERY:
            return last.granted
        histories = [
            (candidate.acceptance.tried, candidate.acceptance.matched, candidate.max_levels) for candidate in candidates
        ]
        overall = self._overall.tried, self._overall.matched
        known = (
            *(self._presence, self.nodes_per_level(requests), self._wait_per_level(len(candidates), requests)),
            *self.step_time.factors,
        )
        facts = (histories, requests, nodes, overall, known)
        if facts != last.facts:
            worth = _CONTINUE_GAIN if any(last.granted) else _START_GAIN
            taken = self._best_candidates(candidates, max(requests, 1), nodes, worth)
            last.facts, last.granted = facts, np.bincount(taken, minlength=len(candidates)).tolist()
        return last.granted

    def _wait_per_level(self, asked: int, running: int) -> float:
        """As measured in steps of so many requests, or the nearest number of them; before any is a guess."""
        if not self._waits:
            return _GUESS * self.step_time.seconds(1)
        size, bits = running.bit_length(), asked.bit_length()
        return median(self._waits[min(self._waits, key=lambda key: 2 * abs(key[0] - size) + abs(key[1] - bits))])

    def _candidates(self, candidates: Sequence[DepthCandidate]) -> tuple[Floats, Ints, Ints]:
        """Chances that levels are output, whose, and which: best first; a level never precedes the one above it."""
        prior = self._overall.rate(0.7)
        rates = np.array([candidate.acceptance.rate(prior) for candidate in candidates])
        most = np.array([min(MAX_LEVELS, candidate.max_levels) for candidate in candidates])
        levels = np.arange(1, MAX_LEVELS + 1)
        chances = np.cumprod(np.repeat(rates[:, None], MAX_LEVELS, axis=1), axis=1)
        indices, places = np.nonzero((chances >= _LEAST_CHANCE) & (levels <= most[:, None]))
        offered = chances[indices, places]
        order = np.lexsort((indices, places, -offered))
        return offered[order], indices[order], levels[places[order]]

    def _best_candidates(self, candidates: Sequence[DepthCandidate], requests: int, nodes: int, worth: float) -> Ints:
        """Whose levels to take: the likeliest, of those that are not deeper than is worth waiting for."""
        chances, indices, levels = self._candidates(candidates)
        wait = self._wait_per_level(len(candidates), requests) * _load(len(candidates))
        best = worth * requests / self.step_time.seconds(requests, nodes)
        per_level = self._presence * self.nodes_per_level(requests)
        taken = indices[:0]
        highest = 0.0
        for deepest in range(1, int(levels.max(initial=0)) + 1):
            within = levels <= deepest
            tokens = requests + self._presence * np.cumsum(chances[within])
            drafted = nodes + per_level * np.arange(1.0, len(tokens) + 1)
            rates = tokens / (self.step_time.predict(requests, drafted) + wait * (_AHEAD + deepest))
            at = int(rates.argmax())
            if rates[at] < highest:
                break
            highest = rates[at]
            if highest > best:
                taken, best = indices[within][: at + 1], highest
        return taken


def _load(asked: int) -> float:
    """How much longer a drafter takes for so many requests than for one, as far as that was not measured."""
    return (_BATCHED + asked) / (_BATCHED + 1)
