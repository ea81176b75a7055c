"""Attaches drafted trees to steps, and sends drafters what the steps committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from slipstream.generation_types import FinishReason
from slipstream_kernels.device_tree import DeviceTree, most_rows
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import Committed, DraftSource, ReadEvents, RequestOpening
from verify_service.core.engine_config import EngineConfig
from verify_service.core.expert_overlap import ExpertOverlap
from verify_service.core.request import RequestKey
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import DeviceStepResult, VerifyResult, mean_context
from verify_service.grammar.drafting import is_forced
from verify_service.hidden_states.rows import HiddenStateHistory, HiddenStateRows
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.scheduler.pass_share import PassShare
from verify_service.scheduler.tree_share import cut_trees, observe_wait
from verify_service.speculation.acceptance_model import ProposedTree, proposed_tree
from verify_service.speculation.draft_latency import DraftLatency
from verify_service.speculation.forecast import Forecast
from verify_service.speculation.goodput import MANY_LATE, GoodputOptimizer
from verify_service.speculation.grammar_trees import GrammarTrees, proposed_forced
from verify_service.speculation.node_selection import NodeSelector
from verify_service.speculation.on_device_trees import OnDeviceTrees
from verify_service.speculation.tree_fit import fit_tree
from verify_service.speculation.tree_sizing import TreeSizer, haste_of

_NOTICEABLE = 2e-4
"""Seconds of a wait for trees in which other work can be done; sources in this process answer sooner."""


class SpeculationController:
    """Requests trees within the optimizer's depths and the KV pages. The source does not raise: see `GuardedSource`."""

    def __init__(
        self,
        source: DraftSource,
        memory: KVCacheManager,
        config: EngineConfig,
        optimizer: GoodputOptimizer,
        passes: PassShare | None = None,
    ) -> None:
        """passes: bounds what trees of one tenant add to passes of others."""
        self._passes = passes or PassShare(optimizer.step_time, config.prefill_chunk)
        self._source = source
        self._optimizer = optimizer
        self._acceptance = optimizer.acceptance
        self._node_selector = NodeSelector(optimizer.step_time, optimizer.acceptance)
        self._memory = memory
        self._step_nodes = config.step_nodes
        self._draft_latency = DraftLatency(optimizer)
        self._on_device = OnDeviceTrees(source, self._draft_latency, self._node_selector)
        self._grammar_trees = GrammarTrees(memory, self._passes, self._node_selector, config.step_nodes)
        self._waited = True
        self._tree_sizer = TreeSizer(optimizer, config.step_nodes)
        self._unannounced: dict[RequestState, RequestOpening] = {}
        """Requests that have been paused from the start, of which the source is told once they no longer are."""
        self._accepts_commits = True
        """Whether the source took in the last step's commits."""
        self._told = False
        """Whether the last step had commits for the source."""
        self._begins = False
        """Whether the last step was decided without trees for the next one, as drafting was to begin behind that."""

    @property
    def grammar_seconds(self) -> float:
        """What drafting of forced text and pruning by grammars have taken of the loop's thread."""
        return self._grammar_trees.seconds

    def begin(self, state: RequestState, history: HiddenStateHistory | None = None, expected: int = 1) -> None:
        """Take in a request that starts with a proposer; `expected` requests will share steps with it.

        The source is told at once where it is to draft; where it is not, that would hold up the request's first step.
        """
        request = state.request
        proposer = state.draft.proposer
        self._optimizer.learn_drafter(proposer, self._source.round_costs(proposer), self._source.most_levels(proposer))
        self._tree_sizer.begin(state, expected)
        opening = RequestOpening(
            key=state.key,
            proposer=state.draft.proposer,
            token_ids=tuple(state.tokens),
            prompt_length=state.prompt_length,
            sampling=state.parameters.sampling,
            choice_index=request.choice_index,
            tenant=request.tenant,
            adapter_id=request.adapter_id,
            cached_length=state.kv.num_computed_tokens,
            history=history,
            request_id=request.context.request_id,
        )
        self._unannounced[state] = opening
        if not state.draft.paused:
            self._announce(state)

    def _announce(self, state: RequestState) -> bool:
        """Tell the source of a request if it does not know of it; return whether a proposer drafts for it."""
        opening = self._unannounced.pop(state, None)
        if opening is not None and not self._source.begin(opening):
            state.draft.proposer = ""
        return bool(state.draft.proposer)

    def expects_trees(self, items: Iterable[ScheduledRequest]) -> bool:
        """Return whether a request will ask for a tree, and may get one, once the step of these rows is decided."""
        asking = self._asking(items)
        return bool(asking) and self._source.expects(asking)

    def _asking(self, items: Iterable[ScheduledRequest]) -> list[RequestKey]:
        """Requests that will ask for a tree, and may get it, once the step of these rows is decided."""
        if self._tree_sizer.over_subscribed or not self._accepts_commits:
            return []
        profitable = self._tree_sizer.is_profitable
        asking: list[RequestKey] = []
        for item in items:
            state = item.state
            draft = state.draft
            if not item.decides or state.finished or not draft.proposer or draft.catching_up:
                continue
            if (profitable or not draft.adaptive) and state.depth_left > 0:
                asking.append(state.key)
        return asking

    @property
    def drafts_on_device(self) -> bool:
        """Whether a drafter may draft on the device behind a step under way."""
        return self._source.drafts_on_device()

    def enqueue_drafts(self, deciding: Sequence[ScheduledRequest], outcome: DeviceStepResult) -> ReadEvents:
        """Enqueue drafting of the next trees behind a step; return the events that the next step must wait for."""
        if untold := self._on_device.untold():
            # What answers the commits sent since the launch is verified already, and counts as such.
            self._on_device.allow(True)
            self._source.collect(untold)
            self._on_device.tell_wait()
        # What grammars have the last word on is drafted for once the host has checked it.
        free = [item for item in deciding if item.state.grammar is None]
        return self._on_device.enqueue(deciding, set(self._asking(free)), outcome)

    @property
    def can_launch_promised(self) -> bool:
        """Whether the next step is best launched with the trees that a device drafts, before the source is told."""
        return self._on_device.suffice

    def expects_wait(self, running: Iterable[RequestState]) -> bool:
        """Return whether the next step will wait for trees, judged by the last, so that other work may go first."""
        return self._waited and any(state.draft.awaiting_tree for state in running)

    def attach_trees(self, items: Sequence[ScheduledRequest]) -> None:
        """Give each item whose request awaits a tree the one that arrived, cut to what fits.

        That is free pages, and `step_nodes` over all items: budgets handed out at different times may add up to more.
        """
        self._draft_latency.begin()
        self._on_device.drop()
        asking = [item for item in items if item.state.draft.awaiting_tree and item.decides]
        awaiting = [item for item in asking if self._wants_tree(item)]
        for item in asking:
            item.state.draft.awaiting_tree = False
        if awaiting:
            self._on_device.allow_for(items)
            self._optimizer.draft_time.expect_behind(self._source.drafts_on_device())
            trees = self._source.collect([item.state.key for item in awaiting])
            self._give(items, list(zip(awaiting, trees, strict=True)))
        self._grammar_trees.attach(items)

    @property
    def can_launch_ahead(self) -> bool:
        """Whether the next step is best launched with the promised trees before the one under way is decided."""
        return self._on_device.suffice and self._on_device.of_one_round

    def attach_promised(self, items: Sequence[ScheduledRequest], *, ahead: bool = False) -> None:
        """Give each item the tree that a device drafts for it, cut to what fits. See `can_launch_promised`.

        ahead: the step that they are drafted behind is not decided yet.
        """
        self._draft_latency.begin(ahead=ahead)
        self._give(items, [each for each in self._on_device.take(items) if self._wants_tree(each[0])])

    def _wants_tree(self, item: ScheduledRequest) -> bool:
        """Whether a tree that was asked for is still waited for: not where none pays for the load that has come since.

        Whoever drafts is busy with the prompts of that load then, for longer than with any tree.
        """
        return not (item.state.draft.adaptive and self._tree_sizer.rests_at_once)

    def _give(
        self, items: Sequence[ScheduledRequest], asked: Sequence[tuple[ScheduledRequest, TokenTree | None]]
    ) -> None:
        """Give items that asked for one the trees that came, cut to what fits and, where the host knows them, pays."""
        if not asked:
            return
        arrived: list[tuple[ScheduledRequest, TokenTree]] = []
        levels = 1
        for item, tree in asked:
            tree = self._grammar_trees.legal(item.state, tree)
            nodes, depth = most_rows(tree)
            if tree is not None and nodes:
                arrived.append((item, tree))
                levels = max(levels, depth)
        late = any(isinstance(tree, DeviceTree) for _, tree in arrived)
        waited = self._draft_latency.end(
            asked=len(asked),
            arrived=len(arrived),
            levels=levels,
            running=len(items),
            device_trees=late,
            catching_up=_many_catch_up(items),
        )
        self._waited = waited > _NOTICEABLE
        observe_wait(self._passes, waited, items, {item.state.parameters.tenant for item, _ in asked})
        self._choose(arrived, items, self._draft_latency.seconds)

    def leave_out(self, states: Iterable[RequestState]) -> None:
        """These have no row in the next step. Trees of theirs that only a device knows do not outlast that step."""
        awaiting = [state for state in states if state.draft.awaiting_tree]
        if awaiting and self._source.drafts_on_device():
            for state in awaiting:
                state.draft.awaiting_tree = False

    def read(self, items: Sequence[ScheduledRequest]) -> bool:
        """Have the host know those trees of a step, just launched, that only a device knew; return if there are any."""
        return self._on_device.read(items)

    def settle_wait(self, idle: float | None, requests: int) -> None:
        """Settle what the step just decided, of so many, waited for trees: `idle` seconds of the engine, if known."""
        if not self._draft_latency.settle(idle) and idle is not None:
            self._optimizer.observe_idle(requests, idle)

    def _choose(
        self, arrived: Sequence[tuple[ScheduledRequest, TokenTree]], items: Sequence[ScheduledRequest], waited: float
    ) -> None:
        """Give items the nodes that pay and fit; those with a fixed budget all that fit, and first."""
        room = self._step_nodes
        fixed: list[tuple[ScheduledRequest, TokenTree]] = []
        free: list[tuple[ScheduledRequest, TokenTree]] = []
        for each in arrived:
            (free if each[0].state.draft.adaptive and not isinstance(each[1], DeviceTree) else fixed).append(each)
        for item, tree in cut_trees(self._passes, fixed, items, room):
            item.tree = fit_tree(self._memory, item, tree, room)
            room -= item.num_rows - 1
        if not free:
            return
        drafted = [proposed_tree(item.state, tree) for item, tree in free]
        rows = sum(item.count for item in items) + self._step_nodes - room
        tokens = sum(item.decides for item in items)
        parts = self._node_selector.choose(drafted, requests=len(items), rows=rows, tokens=tokens, waited=waited)
        if untaken := [proposed for proposed, part in zip(drafted, parts, strict=True) if part is None]:
            self._acceptance.expect(untaken)
        chosen = [(item, part) for (item, _), part in zip(free, parts, strict=True) if part is not None]
        for item, part in cut_trees(self._passes, chosen, items, room):
            item.tree = fit_tree(self._memory, item, part, room)
            room -= item.num_rows - 1

    @property
    def experts(self) -> ExpertOverlap | None:
        """What steps of a mixture wake of its experts; None of another model."""
        return self._optimizer.step_time.experts

    @property
    def forecast(self) -> Forecast:
        """What steps were expected to yield when their trees were asked for."""
        return self._optimizer.forecast

    def observe_step(
        self, decisions: Sequence[VerifyResult], requests: int, nodes: int, seconds: float, awake: int = 0
    ) -> None:
        """Take in a verify pass: its accepted paths and its seconds. `requests` is 0 for a pass with prompt rows.
        awake: experts that it computed with.

        Also takes in finished waits for trees, and updates the estimates here, off the critical path of the next trees.
        """
        self._draft_latency.flush()
        verified: list[tuple[ProposedTree, Sequence[int]]] = []
        for item, (right, _), *_ in decisions:
            tree, state = item.tree, item.state
            if tree is None:
                continue
            if is_forced(tree):
                verified.append((proposed_forced(state, tree), right))
                continue
            verified.append((proposed_tree(state, tree), right))
            if state.draft.adaptive:
                worth = len(tree) if item.profitable_nodes is None else item.profitable_nodes
                self._optimizer.observe_nodes(len(decisions), nodes=worth, depth=tree.depth)
        self._acceptance.observe(verified)
        if requests:
            counted = None
            if self.experts is not None:
                trees = [item.tree for item, *_ in decisions if item.tree is not None]
                counted = self.experts.observe(requests, nodes, trees, awake)
            drafted = sum(len(right) for _, right in verified)
            self._optimizer.observe_pass(requests, nodes, seconds, mean_context(decisions), drafted, counted)
        self._optimizer.prepare()
        self._acceptance.prepare()

    def send_commits(
        self,
        progressed: Sequence[tuple[RequestState, tuple[int, ...]]],
        running: int,
        features: Mapping[RequestKey, HiddenStateRows] = MappingProxyType({}),
        *,
        launched: bool = False,
    ) -> None:
        """Send the source what a step added to requests that go on, and which trees they want next.

        `features` are the states that predicted what the step added, and perhaps tokens beyond a request's limit.
        `running` requests share the step's nodes. Those in the next step already, which is launched, ask for none.
        `launched`: the next step was launched with trees promised for it, and those for the one thereafter are wanted.
        A source that accepts no commits gets them later, without the states; so it does of paused requests.
        """
        drafted = [entry for entry in progressed if entry[0].draft.proposer]
        if not drafted:
            return
        rests = not self._told and self._tree_sizer.rests([state for state, _ in drafted], running)
        self._accepts_commits = rests or self._source.accepts_commits()
        if rests or not self._accepts_commits:
            for state, tokens in drafted:
                state.draft.num_unsent_tokens += len(tokens)
            return
        commits: list[Committed] = []
        self._optimizer.takes_whole = launched or self._source.drafts_on_device()
        self._tree_sizer.rests_at_once = False
        depths = self._tree_sizer.depths([state for state, _ in drafted], running)
        asking = [state for (state, _), depth in zip(drafted, depths, strict=True) if depth > 0]
        haste = haste_of(asking, running)
        unawaited = launched or self._can_begin_behind(asking)
        self._begins = unawaited and not launched
        for (state, tokens), depth in zip(drafted, depths, strict=True):
            draft = state.draft
            if draft.paused:
                draft.num_unsent_tokens += len(tokens)
                draft.awaiting_tree = False
                continue
            if not self._announce(state):
                continue
            depth, key = 0 if state.num_output_placeholders and not launched else depth, state.key
            draft.awaiting_tree = depth > 0 and not unawaited
            rows = self._tree_sizer.rows(state, depth, running)
            states = features.get(key)
            if draft.num_unsent_tokens:
                tokens = tuple(state.tokens[-len(tokens) - draft.num_unsent_tokens :])
                states, draft.num_unsent_tokens = None, 0
            if states is not None and len(tokens) < len(states):
                states = states.slice(states.first, states.first + len(tokens))
            catch_up = self._tree_sizer.wants_states(state, running)
            verified, draft.unsent_verified = draft.unsent_verified, ()
            handed = launched and self._on_device.is_untold(key)
            length = len(state.tokens)
            commits.append(
                Committed(key, tokens, length, rows, depth, states, catch_up, haste, verified, handed, unawaited)
            )
        # After a step with commits the source hears of the next one, be it of no more than that nobody wants anything.
        behind = self._source.commit(commits) if commits or self._told else ()
        self._told = bool(commits)
        for state, _ in drafted:
            state.draft.catching_up = state.draft.paused or state.key in behind

    def _can_begin_behind(self, asking: Sequence[RequestState]) -> bool:
        """Whether the next step is better a plain one, behind which a device drafts the first trees of these requests.

        To wait for them would have the engine idle for a round with the host in between. One request alone would lose
        a step's tree; and where none came of the last such step, these trees are asked for and waited for.
        """
        if len(asking) < 2 or self._begins or not self._source.drafts_on_device():
            return False
        free = all(state.grammar is None and not state.num_output_placeholders for state in asking)
        return free and self._source.drafts_behind([state.key for state in asking])

    def end(self, state: RequestState, reason: FinishReason) -> None:
        """Report the end of a request that began with a proposer."""
        if self._unannounced.pop(state, None) is None:
            self._source.end(state.key, reason, state.draft.unsent_verified)


def _many_catch_up(items: Sequence[ScheduledRequest]) -> bool:
    """Whether drafters are busy with the states of many requests of a step, which is no price of trees."""
    drafts = [item.state.draft for item in items]
    late = sum(draft.catching_up and not draft.paused for draft in drafts)
    return late > MANY_LATE * len(items)
