"""Who runs in the next step, and with how many rows."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from slipstream_kernels.token_tree import TokenTree
from verify_service.engine_config import EngineConfig
from verify_service.kv_memory import KVMemory
from verify_service.request_state import RequestState


@dataclass(slots=True, eq=False)
class ScheduledRows:
    """`count` tokens of a request from `state.computed` on, and drafted nodes below the last of them.

    `tree` is set only where the rows reach the request's last token, which is then the tree's root.
    """

    state: RequestState
    count: int
    tree: TokenTree | None = None

    @property
    def decides(self) -> bool:
        """Whether this step decides a token of the request."""
        return self.state.computed + self.count == len(self.state.tokens)

    @property
    def num_rows(self) -> int:
        """Rows that decide a token: the root and the drafted nodes."""
        return 1 if self.tree is None else 1 + len(self.tree)


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

    def add(self, state: RequestState) -> None:
        """Queue a request behind all others."""
        self._waiting.append(state)

    def remove(self, state: RequestState, *, keep: bool) -> None:
        """Let go of a request, whether it waits or runs; its full pages stay in the prefix cache if `keep` is set."""
        if state.line < 0:
            self._waiting.remove(state)
        else:
            self._stop(state, keep=keep)

    def schedule(self) -> StepPlan:
        """Plan a step; the plan is empty only where nothing runs and nothing can start."""
        plan = StepPlan()
        self._schedule_decodes(plan)
        budget = self._schedule_prefills(plan, self._config.prefill_chunk)
        if not plan.preempted:
            self._start_waiting(plan, budget)
        return plan

    def _schedule_decodes(self, plan: StepPlan) -> None:
        for state in self.running:
            if state.line >= 0 and state.remaining == 1 and self._make_room(state, plan):
                plan.rows.append(ScheduledRows(state, 1))

    def _make_room(self, state: RequestState, plan: StepPlan) -> bool:
        """Hold a page for the last token; False where the request itself had to make way."""
        memory = self._memory
        while not memory.grow(state, len(state.tokens)):
            if memory.reclaim(self._running):
                continue
            victim = self._running[-1]
            self._stop(victim, keep=True)
            self._waiting.appendleft(victim)
            plan.preempted.append(victim)
            if victim is state:
                return False
        return True

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
