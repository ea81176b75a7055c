"""Who runs in the next step, and with how many rows."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from slipstream_kernels.device_tree import most_rows
from slipstream_kernels.token_tree import TokenTree
from verify_service.engine_config import EngineConfig
from verify_service.kv_memory import KVMemory
from verify_service.request_state import RequestState
from verify_service.verifier import Walk


class Choice(NamedTuple):
    """A tree for one way in which the step before may end: after its node `node`, -1 for none, with that token."""

    node: int
    token: int
    tree: TokenTree


@dataclass(slots=True, eq=False)
class ScheduledRows:
    """`count` tokens of a request from `first` on, its first token whose KV was not written when this was planned.

    The step `decides` where the rows reach the request's last token, whose value may be known to the engine alone;
    then drafted nodes, if there are any, hang below it in `tree`. Where the engine may not even know how many tokens
    the step before decides, there are `choices`, perhaps none: it takes the tree of the first that fits, or the root
    alone. Until that step is decided, the rows are `unsettled`, and `first` is the least that it can be.
    """

    state: RequestState
    count: int
    tree: TokenTree | None = None
    choices: tuple[Choice, ...] | None = None
    unsettled: bool = False
    laid: tuple[int, int] | None = None
    """Nodes and levels that the step has room for, where it was launched with a tree that only the device knew."""
    worth: int | None = None
    """Nodes of such a tree that were worth their rows, where that is not all of them."""
    first: int = field(init=False)
    decides: bool = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.state.computed
        self.decides = self.first + self.count == self.state.length

    @property
    def base(self) -> int:
        """Tokens up to and with the last of the rows: where the step decides, the length that trees hang below."""
        return self.first + self.count

    @property
    def depth(self) -> int:
        """Nodes that may be accepted."""
        return self._most[1]

    @property
    def reach(self) -> int:
        """Nodes that may be accepted, whatever is chosen."""
        return max((each.tree.depth for each in self.choices or ()), default=0) if self.unsettled else self.depth

    @property
    def num_rows(self) -> int:
        """Rows that decide a token: the root and the drafted nodes."""
        return 1 + self._most[0]

    @property
    def room(self) -> int:
        """Rows that the pass has for them."""
        if self.choices is None:
            return self.num_rows
        return 1 + max((len(each.tree) for each in self.choices), default=0)

    @property
    def _most(self) -> tuple[int, int]:
        return self.laid or most_rows(self.tree)

    def settle(self, before: Walk) -> None:
        """The step before has decided this, by which the engine chose."""
        node = before.nodes[-1] if before.nodes else -1
        fitting = (each.tree for each in self.choices or () if (each.node, each.token) == (node, before.tokens[-1]))
        self.first += len(before.nodes)
        self.tree = next(fitting, None)
        self.unsettled = False


@dataclass(slots=True)
class StepPlan:
    """One forward pass: requests in the order of their arrival within each of decode and prefill."""

    rows: list[ScheduledRows] = field(default_factory=list)
    started: list[RequestState] = field(default_factory=list)
    preempted: list[RequestState] = field(default_factory=list)


class Scheduler:
    """First come, first served.

    Every running request that decodes gets its row in every step; what is left of `prefill_chunk` goes to prompts in
    order of arrival. A request starts once all its tokens find pages. One that decodes and finds no page takes those
    of the latest arrival, which waits and later computes its KV again; prompts and trees never do.
    """

    def __init__(self, config: EngineConfig, memory: KVMemory) -> None:
        self._config = config
        self._memory = memory
        self._waiting: deque[RequestState] = deque()
        self._running: list[RequestState] = []
        self._lines = list(range(config.max_running))[::-1]

    @property
    def running(self) -> tuple[RequestState, ...]:
        """In the order of arrival."""
        return tuple(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Whether another request would be one too many."""
        return self.num_running + self.num_waiting >= self._config.max_running + self._config.max_queued

    @property
    def only_decodes(self) -> bool:
        """Whether the next step has rows of requests that decode, and no others."""
        starts = bool(self._lines and self._waiting) and self._may_start(self._waiting[0])
        return not starts and all(state.remaining <= 1 for state in self._running)

    def add(self, state: RequestState) -> None:
        """Queue a request behind all others."""
        self._waiting.append(state)

    def remove(self, state: RequestState, *, keep: bool) -> None:
        """Let go of a request, whether it waits or runs; its full pages stay in the prefix cache if `keep` is set."""
        if state.line < 0:
            self._waiting.remove(state)
        else:
            self._stop(state, keep=keep)

    def schedule(self, *, may_preempt: bool = True) -> StepPlan | None:
        """Plan a step, beside those under way. None where that takes a preemption and `may_preempt` forbids it.

        The plan is empty only where nothing can start and what runs, if anything does, waits for steps under way.
        Nobody may be preempted before these are decided: what a request has to come back with is not known yet.
        """
        plan = StepPlan()
        if not self._schedule_decodes(plan, may_preempt=may_preempt):
            return None
        budget = self._schedule_prefills(plan, self._config.prefill_chunk)
        if not plan.preempted:
            self._start_waiting(plan, budget)
        return plan

    def _schedule_decodes(self, plan: StepPlan, *, may_preempt: bool) -> bool:
        """Plan the rows of all that decode; False where one finds no page and nobody may make way."""
        for state in self.running:
            length = state.length
            if length - state.computed != 1 or length >= state.limit:  # or decided to the end by steps under way
                continue
            while state.line >= 0 and not self._hold_last(state):
                if not may_preempt:
                    return False
                self._preempt(self._running[-1], plan)
            if state.line >= 0:
                plan.rows.append(ScheduledRows(state, 1))
        return True

    def _hold_last(self, state: RequestState) -> bool:
        """Hold a page for the last token; False where no page can be had but a request's own."""
        memory, length = self._memory, state.length + state.spread
        return memory.grow(state, length) or (memory.reclaim(self._running) > 0 and memory.grow(state, length))

    def _preempt(self, victim: RequestState, plan: StepPlan) -> None:
        """Send a request back to the head of the queue."""
        self._stop(victim, keep=True)
        self._waiting.appendleft(victim)
        plan.preempted.append(victim)

    def _schedule_prefills(self, plan: StepPlan, budget: int) -> int:
        for state in self._running:
            if budget and state.remaining > 1:
                budget -= self._schedule_chunk(state, plan, budget)
        return budget

    def _start_waiting(self, plan: StepPlan, budget: int) -> None:
        while budget and self._lines and self._waiting and self._may_start(self._waiting[0]):
            state = self._waiting.popleft()
            state.line = self._lines.pop()
            insort(self._running, state, key=lambda running: running.ticket)
            self._memory.begin(state)
            plan.started.append(state)
            budget -= self._schedule_chunk(state, plan, budget)

    def _may_start(self, state: RequestState) -> bool:
        """Whether all tokens of a waiting request fit, and nobody is about to share a page of its prompt with it."""
        return self._memory.fits(state) and not any(
            not running.prefilled and self._memory.would_share(running, state) for running in self._running
        )

    def _schedule_chunk(self, state: RequestState, plan: StepPlan, budget: int) -> int:
        """Plan the next rows of a prompt as far as the budget reaches; returns how many."""
        count = min(state.remaining, budget)
        plan.rows.append(ScheduledRows(state, count))
        return count

    def _stop(self, state: RequestState, *, keep: bool) -> None:
        self._memory.end(state, keep=keep)
        self._running.remove(state)
        self._lines.append(state.line)
        state.line = -1
