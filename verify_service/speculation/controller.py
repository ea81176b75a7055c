"""How drafted trees enter a step, and how drafters learn what became of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from slipstream.generation_types import FinishReason
from slipstream_kernels.device_tree import DeviceTree, most_rows
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import truncated
from verify_service.core.draft_source import (
    Committed,
    DraftSource,
    EnqueuedRequest,
    OnDeviceDrafter,
    Opening,
    OutcomeTree,
    OutcomeTreeSource,
    ReadEvents,
)
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import RequestKey
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import DeviceStepResult, VerifyResult
from verify_service.hidden_states.rows import HiddenStateHistory, HiddenStateRows
from verify_service.model_runner.device_trees import copy_to_host, not_on_host, verifies_all_nodes
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.scheduler.pass_share import PassShare
from verify_service.scheduler.tree_share import allowed_nodes, cut_trees, observe_wait
from verify_service.speculation.acceptance_model import ProposedTree
from verify_service.speculation.draft_latency import DraftLatency
from verify_service.speculation.goodput import GoodputOptimizer
from verify_service.speculation.node_selection import NodeSelector
from verify_service.speculation.outcome_trees import fitting
from verify_service.speculation.tree_sizing import TreeSizer, haste_of

_log = logging.getLogger(__name__)


_NOTICEABLE = 2e-4
"""Seconds of a wait for trees in which other work can be done; sources in this process answer sooner."""


class SpeculationController:
    """Asks a tree source for trees within budget and memory. Whatever the source does, the step goes on."""

    def __init__(
        self,
        trees: DraftSource,
        memory: KVCacheManager,
        config: EngineConfig,
        budget: GoodputOptimizer,
        foresight: OutcomeTreeSource | None = None,
        follower: OnDeviceDrafter | None = None,
        passes: PassShare | None = None,
    ) -> None:
        """`foresight` is what the source knows of steps to come; `follower` has trees begun behind steps.

        `passes` bounds what trees of one tenant add to passes of others.
        """
        self._passes = passes or PassShare(budget.costs, config.prefill_chunk)
        self._trees = trees
        self._foresight = foresight
        self._follower = follower
        self._budget = budget
        self._choice = NodeSelector(budget.costs)
        self._memory = memory
        self._step_nodes = config.step_nodes
        self._waits = DraftLatency(budget)
        self._slow = True
        self._wishes = TreeSizer(budget, config.step_nodes)
        self._foreseen: set[RequestKey] = set()
        self._heard = True
        """Whether the source took in the last step's tokens."""

    def begin(self, state: RequestState, history: HiddenStateHistory | None = None) -> None:
        """Announce a request that starts with a proposer."""
        request = state.request
        self._wishes.begin(state)
        try:
            self._trees.begin(
                Opening(
                    key=state.key,
                    proposer=state.proposer,
                    token_ids=tuple(state.tokens),
                    prompt_length=state.prompt_length,
                    sampling=state.sampling,
                    choice_index=request.choice_index,
                    tenant=request.tenant,
                    adapter_id=request.adapter_id,
                    cached_length=state.computed,
                    history=history,
                )
            )
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to begin a request, which decodes plainly")
            state.proposer = ""

    def expects_trees(self, items: Iterable[ScheduledRequest]) -> bool:
        """Whether a request will ask for a tree, and may get it, once the step of these rows is decided."""
        asking = self._asking(items)
        if not asking:
            return False
        try:
            return self._trees.expects(asking)
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to say what it expects")
            return False

    def needs_no_wait(self, items: Iterable[ScheduledRequest]) -> bool:
        """Whether the step after that of these rows may begin with what is prepared for it, if anything is."""
        asking = self._asking(items)
        if not asking or self._foresight is None:
            return not asking
        try:
            return self._foresight.foresees(asking)
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to say whom it waits for")
            return False

    def await_prepared(self, items: Iterable[ScheduledRequest], seconds: float | None) -> bool:
        """Wait up to so long for trees for the ends of the step of these rows; whether the next may begin with them.

        Without a limit it may only where nobody asks for any.
        """
        asking = self._asking(items)
        if not asking or self._foresight is None or seconds is None:
            return not asking
        try:
            return self._foresight.await_prepared(asking, max(0.0, seconds))
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to wait for trees")
            return False

    def attach_choices(
        self, items: Sequence[ScheduledRequest], before: Mapping[RequestState, ScheduledRequest]
    ) -> None:
        """Give each item, of whose request the rows of `before` are under way, what is prepared for their end.

        Cut to what fits each end, and to `step_nodes` over all items, whatever each of them chooses.
        """
        following = [item for item in items if item.state in before]
        asking = self._asking(before[item.state] for item in following)
        self._foreseen = set(asking)
        prepared = dict(zip(asking, self._take_prepared(asking), strict=True))
        room = self._step_nodes
        largest = [max((len(each.tree) for each in prepared.get(item.state.key, ())), default=0) for item in following]
        allowed = allowed_nodes(self._passes, following, largest, items, room)
        for index, item in enumerate(following):
            item.unsettled = True
            most = room if allowed is None else min(room, allowed[index])
            item.choices = fitting(self._memory, before[item.state], prepared.get(item.state.key, ()), most)
            room -= item.room - 1

    def _asking(self, items: Iterable[ScheduledRequest]) -> list[RequestKey]:
        """Requests that will ask for a tree, and may get it, once the step of these rows is decided."""
        if self._wishes.crowded or not self._heard:
            return []
        return [
            item.state.key
            for item in items
            if item.decides
            and not item.state.gone
            and item.state.proposer
            and item.state.depth_left > 0
            and not item.state.behind
            and (self._wishes.pays or not item.state.adaptive)
        ]

    def _take_prepared(self, keys: list[RequestKey]) -> Sequence[Sequence[OutcomeTree]]:
        if not keys or self._foresight is None:
            return [()] * len(keys)
        try:
            return self._foresight.take_prepared(keys)
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to hand over what it prepared, the step decodes plainly")
            return [()] * len(keys)

    @property
    def follows(self) -> bool:
        """Whether anybody may draft behind a step under way."""
        return self._follower is not None

    def follow(self, deciding: Sequence[ScheduledRequest], outcome: DeviceStepResult) -> ReadEvents:
        """Have the next trees of a step's requests begun before it is decided; what must come before the next step."""
        asking = set(self._asking(deciding))
        rows = [
            EnqueuedRequest(item.state.key, row, 1 + item.depth, outcome.routes[item])
            for row, item in enumerate(deciding)
            if item.state.key in asking and item.count == 1 and item in outcome.routes and not item.unsettled
        ]
        if not rows or self._follower is None:
            return ()
        try:
            return self._follower.follow(rows, outcome)
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("no tree was begun behind a step")
            return ()

    def leaves_time(self, running: Iterable[RequestState]) -> bool:
        """Whether trees will be waited for, judged by the last ones, so that other work may go before the next step."""
        return self._slow and any(state.wants_tree for state in running)

    def attach_trees(self, items: Sequence[ScheduledRequest]) -> None:
        """Give each item whose request awaits a tree the one that arrived, cut to what fits.

        That is free pages, and `step_nodes` over all items: budgets handed out at different times may add up to more.
        """
        self._waits.begin()
        awaiting = [item for item in items if item.state.wants_tree and item.decides]
        if not awaiting:
            return
        if self._follower is not None:
            self._follower.take_unread(verifies_all_nodes(items))
        trees = self._collect([item.state.key for item in awaiting])
        arrived: list[tuple[ScheduledRequest, TokenTree]] = []
        levels = 1
        for item, tree in zip(awaiting, trees, strict=True):
            item.state.wants_tree = False
            nodes, depth = most_rows(tree)
            if tree is not None and nodes:
                arrived.append((item, tree))
                levels = max(levels, depth)
        late = any(isinstance(tree, DeviceTree) for _, tree in arrived)
        asked, running = len(awaiting), len(items)
        waited = self._waits.end(asked=asked, arrived=len(arrived), levels=levels, running=running, unread=late)
        self._slow = waited > _NOTICEABLE
        observe_wait(self._passes, waited, items, {item.state.tenant for item in awaiting})
        self._choose(arrived, items, self._waits.price)

    def leave_out(self, states: Iterable[RequestState]) -> None:
        """These have no row in the next step. Trees of theirs that only a device knows do not outlast that step."""
        if self._follower is not None:
            for state in states:
                state.wants_tree = False

    def read(self, items: Sequence[ScheduledRequest], meanwhile: Callable[[], None] | None = None) -> bool:
        """Have the host know those trees of a step, just launched, that only the device knew; whether there were any.

        `meanwhile` is called before they are waited for, and takes less time than a draft. Whatever fails here, the
        step goes on.
        """
        late = not_on_host(items)
        try:
            if late and meanwhile is not None:
                meanwhile()
        except Exception:  # noqa: BLE001 - the step is under way already
            _log.exception("what was to be done while a device drafts failed")
        begun = time.perf_counter()
        copy_to_host(late)
        self._waits.read()
        try:
            if late and self._follower is not None:
                self._follower.waited([item.state.key for item in late], time.perf_counter() - begun)
            self._weigh(late)
        except Exception:  # noqa: BLE001 - the step is under way already
            _log.exception("what the trees of a step are worth cannot be told")
        return bool(late)

    def idled(self, seconds: float) -> None:
        """The engine had nothing to do for so long before the step that was just launched."""
        self._waits.idled(seconds)

    def _weigh(self, late: Sequence[ScheduledRequest]) -> None:
        """Work out how much of trees that were taken whole, although a budget sizes them, was worth its rows."""
        for item in late:
            if item.tree is not None and item.state.adaptive:
                drafted = [_drafted(item.state, item.tree)]
                (part,) = self._choice.choose(drafted, requests=1, rows=1, tokens=1, waited=self._waits.price)
                item.worth = 0 if part is None else len(part)

    def _choose(
        self, arrived: Sequence[tuple[ScheduledRequest, TokenTree]], items: Sequence[ScheduledRequest], waited: float
    ) -> None:
        """Give items the nodes that pay and fit; those with a fixed budget all that fit, and first."""
        room = self._step_nodes
        fixed: list[tuple[ScheduledRequest, TokenTree]] = []
        free: list[tuple[ScheduledRequest, TokenTree]] = []
        for each in arrived:
            (free if each[0].state.adaptive and not isinstance(each[1], DeviceTree) else fixed).append(each)
        for item, tree in cut_trees(self._passes, fixed, items, room):
            item.tree = self._fitted(item, tree, room)
            room -= item.num_rows - 1
        if not free:
            return
        drafted = [_drafted(item.state, tree) for item, tree in free]
        rows = sum(item.count for item in items) + self._step_nodes - room
        tokens = sum(item.decides for item in items)
        parts = self._choice.choose(drafted, requests=len(items), rows=rows, tokens=tokens, waited=waited)
        chosen = [(item, part) for (item, _), part in zip(free, parts, strict=True) if part is not None]
        for item, part in cut_trees(self._passes, chosen, items, room):
            item.tree = self._fitted(item, part, room)
            room -= item.num_rows - 1

    def _fitted(self, item: ScheduledRequest, tree: TokenTree, room: int) -> TokenTree | None:
        """What of a tree fits its request, the pages, and `room` nodes; None if nothing does."""
        state, base, (nodes, depth) = item.state, item.base, most_rows(tree)
        rows, allowed = min(state.max_nodes, 1 + room), min(depth, state.depth_left)
        allowed = self._memory.grow_up_to(state, base + allowed) - base
        if allowed == depth and nodes < rows:
            return tree
        return truncated(tree, max_nodes=rows, max_depth=allowed)

    def learn(self, decisions: Sequence[VerifyResult], requests: int, nodes: int, seconds: float) -> None:
        """Take in a verify pass: what its trees were worth, and how long it took. With prompt rows it has 0 `requests`.

        Also waits for trees that are over. What follows from all that is worked out here, too, and not when the next
        trees are asked for or have come.
        """
        self._waits.tell()
        chosen = [decision.item for decision in decisions if decision.item.choices]
        if chosen:
            arrived, levels = sum(item.tree is not None for item in chosen), max(item.depth for item in chosen)
            self._budget.observe_wait(0.0, asked=len(chosen), arrived=arrived, levels=levels)
        for decision in decisions:
            tree = decision.item.tree
            if tree is not None:
                state, right = decision.item.state, decision.walk.nodes
                self._choice.observe(_drafted(state, tree), right)
                self._budget.observe_tree(state.acceptance, depth=tree.depth, matched=len(right))
                if state.adaptive:
                    worth = len(tree) if decision.item.worth is None else decision.item.worth
                    self._budget.observe_nodes(len(decisions), nodes=worth, depth=tree.depth)
        if requests:
            self._budget.costs.observe(requests, nodes, seconds)
        self._budget.prepare()
        self._choice.prepare()

    def report(
        self,
        progressed: Sequence[tuple[RequestState, tuple[int, ...]]],
        running: int,
        features: Mapping[RequestKey, HiddenStateRows] = MappingProxyType({}),
        under_way: Mapping[RequestState, ScheduledRequest] = MappingProxyType({}),
    ) -> None:
        """Tell the source what a step added to requests that go on, and which trees they want next.

        `features` are the states that predicted what the step added, and perhaps tokens beyond a request's limit.
        `running` requests share the step's nodes. Those in the next step already, which is launched and has these rows
        `under_way`, ask for none; where they chose a tree it tells of that, and trees are wanted for the step's ends.
        A source that does not listen is told later, when it does, without the states; so it is of requests that rest.
        """
        drafted = [entry for entry in progressed if entry[0].proposer]
        if not drafted:
            return
        if not self._listens():
            for state, tokens in drafted:
                state.untold += len(tokens)
            return
        commits: list[Committed] = []
        depths = self._wishes.depths([state for state, _ in drafted], running)
        haste = haste_of([state for (state, _), depth in zip(drafted, depths, strict=True) if depth > 0], running)
        for (state, tokens), depth in zip(drafted, depths, strict=True):
            if state.rests:
                state.untold += len(tokens)
                state.wants_tree = False
                continue
            item = under_way.get(state)
            ahead = item is not None and item.choices is not None and state.key in self._foreseen
            depth, key = 0 if state.pending and not ahead else depth, state.key
            state.wants_tree = depth > 0 and not ahead
            rows = self._wishes.rows(state, depth, running)
            states = features.get(key)
            if state.untold:
                tokens, states, state.untold = tuple(state.tokens[-len(tokens) - state.untold :]), None, 0
            if states is not None:
                states = states.slice(states.first, states.first + len(tokens))
            tree = item.tree if item is not None and ahead else None
            catch_up = self._wishes.wants_states(state, running)
            commits.append(Committed(key, tokens, len(state.tokens), rows, depth, states, tree, catch_up, haste))
        behind: Collection[RequestKey] = ()
        try:
            behind = self._trees.commit(commits)
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to take a step's tokens")
        for state, _ in drafted:
            state.behind = state.rests or state.key in behind

    def _listens(self) -> bool:
        """Whether the source takes in what a step added; while it does not, nothing is done for it."""
        try:
            self._heard = self._trees.listens()
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to say whether it listens")
            self._heard = True
        return self._heard

    def end(self, key: RequestKey, reason: FinishReason) -> None:
        """Report the end of a request that began with a proposer."""
        try:
            self._trees.end(key, reason)
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to end a request")

    def _collect(self, keys: list[RequestKey]) -> Sequence[TokenTree | None]:
        try:
            return self._trees.collect(keys)
        except Exception:  # noqa: BLE001 - a source that fails may cost speed and nothing else
            _log.exception("the tree source failed to hand over trees, the step decodes plainly")
            return [None] * len(keys)


def _drafted(state: RequestState, tree: TokenTree) -> ProposedTree:
    return ProposedTree((state.proposer, state.sampling.temperature > 0), state.acceptance.last, tree)
