"""How deep a tree each request wants next, and whose drafters are spared the news while no trees pay."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from verify_service.core.draft_source import WaitUrgency
from verify_service.core.request_state import RequestState
from verify_service.speculation.goodput import PROBE_EVERY, PROBE_STEPS, DepthCandidate, GoodputOptimizer

REST_AFTER = 8
"""Steps in a row in which no trees pay before drafters are told of few requests only."""
KEPT_READY, READY_BEFORE = 4, 64
"""Requests whose drafters are told for so many steps before a probe, which then finds out whether trees pay again."""
AT_FIRST = 16.0
"""Nodes a level that all trees of a step together have, before any: with few, it would not be seen that more pay."""
LITTLE_LESS = 0.75
"""Of the rows asked for last, what is still asked for as them."""
CATCHING_UP = 0.01
"""Steps that one request alone is held up by for each token whose states its drafter lacks, over what trees save."""


def haste_of(asking: Sequence[RequestState], running: int) -> WaitUrgency:
    """That of a step of `running` requests, these of which want trees."""
    if len(asking) < running:
        return WaitUrgency.HURRIED
    return WaitUrgency.WEIGHED if any(state.adaptive for state in asking) else WaitUrgency.INSISTENT


class TreeSizer:
    """Depths by the node budget, by the room of a step, and by what a drafter is able to do.

    While no trees pay, drafters are told nothing of requests but a few before each probe: they `rest`, and are told all
    at once when trees pay again; meanwhile it matters less what their trees were worth than what those of requests are
    that probes ask. A request whose drafter is `behind`, as it lacks states of older tokens, asks for nothing until it
    has them.
    """

    def __init__(self, budget: GoodputOptimizer, step_nodes: int) -> None:
        """step_nodes: drafted rows of a step, over all requests."""
        self._budget = budget
        self._step_nodes = step_nodes
        self._fruitless = 0
        """Steps in a row in which no trees were worth their cost."""
        self._ready: list[RequestState] = []
        self.crowded = False
        """Whether more requests run than a step has drafted rows."""
        self.pays = True
        """Whether requests whose trees the budget sizes ask for any."""

    @property
    def resting(self) -> bool:
        """Whether drafters are told of few requests only."""
        return self._fruitless > REST_AFTER

    def begin(self, state: RequestState) -> None:
        """A request starts; it may rest from the first."""
        rests = self.resting and len(self._ready) >= self._kept_ready
        state.rests = state.behind = rests and (state.adaptive or self.crowded)

    def depths(self, states: Sequence[RequestState], running: int) -> list[int]:
        """Depth of the next tree of each of these that go on, 0 for none; and settles which of them rest.

        running: requests that share the step's nodes.
        """
        self.crowded = self._step_nodes < running
        depths = [max(0, state.depth_left) for state in states]
        granted = [0] * len(states) if self.crowded else self._granted(states, depths, running)
        self._rest(states)
        return [0 if state.behind else depth for state, depth in zip(states, granted, strict=True)]

    def rows(self, state: RequestState, depth: int, running: int) -> int:
        """Rows of a tree of that depth, its root included: what trees have used so far, and half as many more.

        A little less than before is not asked for: a round that was begun for as many would have to be cut.
        """
        if depth <= 0:
            return 1
        most = min(state.max_nodes, state.most_rows or state.max_nodes, 1 + self._step_nodes // max(1, running))
        if not state.adaptive:
            return most
        nodes = self._budget.nodes_per_level(running, max(1.0, AT_FIRST / max(1, running)))
        wanted = min(most, 1 + max(depth, ceil(1.5 * depth * nodes)))
        if not LITTLE_LESS * state.asked_rows <= wanted <= state.asked_rows <= most:
            state.asked_rows = wanted
        return state.asked_rows

    def wants_states(self, state: RequestState, running: int) -> bool:
        """Whether a request's drafter is to get the states of older tokens that it lacks, beside `running` requests.

        All of them are held up by that, more than it brings where little is left of the request.
        """
        return state in self._ready or (not self._fruitless and _is_worth(state, running))

    @property
    def _kept_ready(self) -> int:
        """How many requests' drafters are told while others rest."""
        since = self._fruitless % PROBE_EVERY
        near = since >= PROBE_EVERY - READY_BEFORE or (since < PROBE_STEPS and self._fruitless >= PROBE_EVERY)
        return KEPT_READY if near else 0

    def _granted(self, states: Sequence[RequestState], depths: list[int], running: int) -> list[int]:
        adaptive = [index for index, state in enumerate(states) if state.adaptive]
        bidders = {
            index: DepthCandidate(states[index].acceptance, depths[index]) for index in adaptive if depths[index] > 0
        }
        bidding = [index for index in bidders if not states[index].behind]
        if not adaptive:
            self._fruitless = 0
        if not bidders:
            return depths
        fixed = sum(min(depths[i], 4) for i, state in enumerate(states) if not state.adaptive)
        late = (index for index in bidders if states[index].behind and _is_worth(states[index], running))
        catching_up = [bidders[index] for index in late]
        granted = self._budget.levels([bidders[index] for index in bidding], running, catching_up, nodes=fixed)
        self.pays = any(granted)
        self._fruitless = 0 if self._budget.pays else self._fruitless + 1
        for index, depth in zip(bidding, granted, strict=True):
            depths[index] = depth
        return depths

    def _rest(self, states: Sequence[RequestState]) -> None:
        """Settle who rests of these, and who is kept ready: those that are, and then the ones with least to be told."""
        if self.crowded:
            self._fruitless += 1
        resting = [state for state in states if state.adaptive or self.crowded] if self.resting else []
        able = set(resting)
        self._ready = [state for state in self._ready if state in able and not state.gone]
        kept = self._kept_ready
        del self._ready[kept:]
        if len(self._ready) < min(kept, len(resting)):
            others = able.difference(self._ready)
            rising = sorted(others, key=lambda state: (state.behind, state.untold, state.ticket))
            self._ready += rising[: kept - len(self._ready)]
        fades = self._fruitless % PROBE_EVERY == 0
        for state in states:
            state.rests = state in able and state not in self._ready
            state.behind |= state.rests
            if state.rests and fades:
                state.acceptance.fade()


def _is_worth(state: RequestState, running: int) -> bool:
    """Whether what is left of a request may pay for bringing its drafter up to date, in steps of so many requests."""
    return state.limit - state.length >= CATCHING_UP * state.length * running
