"""Depths of the next trees, and which requests have drafting paused while no trees are profitable."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from verify_service.core.draft_source import WaitUrgency
from verify_service.core.load_size import load_size
from verify_service.core.request_state import RequestState
from verify_service.speculation.goodput import DepthCandidate, GoodputOptimizer

KEPT_READY = 4
"""Requests that a probe drafts for: to tell drafters of so few costs next to nothing."""
AT_FIRST = 16.0
"""Nodes a level that all trees of a step together have, before any: with few, it would not be seen that more pay."""
SPARE, WHOLE_SPARE = 1.5, 1.25
"""Nodes asked for, over those that paid lately: where the host chooses among them, and where all are verified."""
LITTLE_LESS = 0.75
"""Of the rows asked for last, what is still asked for as them."""
CATCHING_UP = 0.003
"""Steps that one request alone is held up by for each token whose states its drafter lacks, over what trees save."""


def haste_of(asking: Sequence[RequestState], running: int) -> WaitUrgency:
    """That of a step of `running` requests, these of which want trees."""
    if len(asking) < running:
        return WaitUrgency.HURRIED
    return WaitUrgency.WEIGHED if any(state.draft.adaptive for state in asking) else WaitUrgency.INSISTENT


class TreeSizer:
    """Chooses depths by the goodput optimizer, the rows of a step, and what a drafter is able to do.

    While no trees are profitable, drafting of all requests is paused but for a few kept warm before each probe. Paused
    requests are sent at once when trees are profitable again; meanwhile their acceptance history decays, so that probed
    requests dominate the estimate. A request with `drafter_catching_up` asks for no tree.
    """

    def __init__(self, budget: GoodputOptimizer, step_nodes: int) -> None:
        """step_nodes: drafted rows of a step, over all requests."""
        self._optimizer = budget
        self._step_nodes = step_nodes
        self._gate = budget.gate
        self._warm: list[RequestState] = []
        self._begun: list[RequestState] = []
        """Those that wait for the end of their prompt."""
        self._weighed: dict[int, bool] = {}
        """Whether trees would pay, by `load_size` of the requests; for one step."""
        self._size = 0, 0
        """Requests of the last step that were asked about, and that shared its nodes."""
        self.over_subscribed = False
        """Whether more requests run than a step has drafted rows."""
        self.is_profitable = True
        """Whether requests whose trees the optimizer sizes ask for any."""
        self.rests_at_once = False
        """Whether drafting was paused for the load that comes since trees were last asked for."""

    def begin(self, state: RequestState, expected: int = 1) -> None:
        """Begin a request, whose drafting may be paused from the start; `expected` requests will share steps with it.

        Where trees would not pay then, nobody is drafted for from now on: the states of all their prompts would go to
        drafters for nothing, and hold up everybody's first token.
        """
        adaptive = state.draft.adaptive
        if adaptive and not self._gate.paused and not self._would_pay(state, expected):
            self._gate.rest()
            self.rests_at_once = True
        rests = self._gate.paused and len(self._warm) >= self._num_warm
        state.draft.paused = state.draft.catching_up = rests and (adaptive or self.over_subscribed)
        if adaptive:
            self._begun.append(state)

    def rests(self, states: Sequence[RequestState], running: int) -> bool:
        """Decide that a step of requests that all rest goes on without trees; False where `depths` has to choose.

        That is where there are more requests than in the last step, or fewer, and now and then.
        """
        size = len(states), running
        same, self._size = size == self._size, size
        return same and all(state.draft.paused for state in states) and self._optimizer.rests(max(running, 1))

    def depths(self, states: Sequence[RequestState], running: int) -> list[int]:
        """Return the depth of each request's next tree, 0 for none; update which of them are paused.

        running: requests that share the step's nodes.
        """
        self.over_subscribed = self._step_nodes < running
        self._weighed.clear()
        if self._begun:
            given = set(states)
            self._begun = [state for state in self._begun if not (state.finished or state in given)]
        depths = [max(0, state.depth_left) for state in states]
        granted = [0] * len(states) if self.over_subscribed else self._granted(states, depths, running)
        self._pause(states)
        return [0 if state.draft.catching_up else depth for state, depth in zip(states, granted, strict=True)]

    def rows(self, state: RequestState, depth: int, running: int) -> int:
        """Rows of a tree of that depth, its root included: what trees have used so far, and some more.

        A little less than before is not asked for: a round that was begun for as many would have to be cut. Where all
        nodes are verified one too many for each request is not spared: it costs every one of them.
        """
        if depth <= 0:
            return 1
        draft = state.draft
        most = min(draft.max_tree_rows or draft.max_nodes, draft.max_nodes, 1 + self._step_nodes // max(1, running))
        if not draft.adaptive:
            return most
        nodes = self._optimizer.nodes_per_level(running, max(1.0, AT_FIRST / max(1, running)))
        if self._optimizer.takes_whole and running > 1:
            draft.requested_rows = min(most, 1 + max(depth, int(WHOLE_SPARE * depth * nodes)))
            return draft.requested_rows
        wanted = min(most, 1 + max(depth, ceil(SPARE * depth * nodes)))
        if not LITTLE_LESS * draft.requested_rows <= wanted <= draft.requested_rows <= most:
            draft.requested_rows = wanted
        return draft.requested_rows

    def wants_states(self, state: RequestState, running: int) -> bool:
        """Whether a request's drafter is to get the states of older tokens that it lacks, beside `running` requests.

        All of them are held up by that, more than it brings where little is left of the request.
        """
        return (not self._gate.unprofitable_steps and _is_worth(state, running)) or state in self._warm

    def _would_pay(self, state: RequestState, expected: int) -> bool:
        size = load_size(expected)
        if size not in self._weighed:
            self._weighed[size] = self._optimizer.would_pay(_candidate(state), expected)
        return self._weighed[size]

    @property
    def _num_warm(self) -> int:
        """How many requests are kept warm while others are paused."""
        return KEPT_READY if self._gate.keeps_ready else 0

    def _granted(self, states: Sequence[RequestState], depths: list[int], running: int) -> list[int]:
        adaptive = [index for index, state in enumerate(states) if state.draft.adaptive]
        bidders = {index: _candidate(states[index]) for index in adaptive if depths[index] > 0}
        bidding = [index for index in bidders if not states[index].draft.catching_up]
        if not adaptive:
            self._gate.open()
        if not bidders:
            return depths
        fixed = sum(min(depths[i], 4) for i, state in enumerate(states) if not state.draft.adaptive)
        late = (index for index in bidders if states[index].draft.catching_up and _is_worth(states[index], running))
        catching_up = [bidders[index] for index in late]
        catching_up += [_candidate(state) for state in self._begun if state.depth_left > 0]
        granted = self._optimizer.choose_depths(
            [bidders[index] for index in bidding], running, catching_up, nodes=fixed
        )
        self.is_profitable = any(granted)
        for index, depth in zip(bidding, granted, strict=True):
            depths[index] = depth
        return depths

    def _pause(self, states: Sequence[RequestState]) -> None:
        """Update which requests are paused and which kept warm: first those warm already, then fewest unsent tokens.

        Drafters of those kept warm are told all once, and then of every step shortly before the probe and in it: many
        tokens cost a drafter little more than one.
        """
        if self.over_subscribed:
            self._gate.step(profitable=False)
        resting = (
            [state for state in states if state.draft.adaptive or self.over_subscribed] if self._gate.paused else []
        )
        able = set(resting)
        self._warm = [state for state in self._warm if state in able and not state.finished]
        kept = self._num_warm
        del self._warm[kept:]
        held = set() if self._gate.probe_nears else {each for each in self._warm if _has_caught_up(each)}
        if len(self._warm) < min(kept, len(resting)):
            others = able.difference(self._warm)
            rising = sorted(
                others,
                key=lambda state: (
                    state.draft.catching_up,
                    state.draft.num_unsent_tokens,
                    state.parameters.arrival_number,
                ),
            )
            self._warm += rising[: kept - len(self._warm)]
        for state in states:
            state.draft.paused = state in able and (state not in self._warm or state in held)
            state.draft.catching_up |= state.draft.paused
        if self._gate.probe_begins:
            paused = [state.draft.acceptance for state in states if state.draft.paused]
            self._optimizer.acceptance.leave_out(paused)


def _has_caught_up(state: RequestState) -> bool:
    """Of a request that is kept ready: a step has told its drafter all, of which it lacks nothing, or one before."""
    return state.draft.paused or not state.draft.catching_up


def _candidate(state: RequestState) -> DepthCandidate:
    return DepthCandidate(state.draft.acceptance, max(0, state.depth_left), state.draft.proposer)


def _is_worth(state: RequestState, running: int) -> bool:
    """Whether what is left of a request may pay for bringing its drafter up to date, in steps of so many requests."""
    length = state.length
    return state.parameters.max_length - length >= CATCHING_UP * length * running
