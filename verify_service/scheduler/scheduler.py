"""Who runs in the next step, and with how many rows."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from itertools import islice

from verify_service.core.engine_config import EngineConfig
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest, SchedulerOutput
from verify_service.core.step_time_model import StepTimeModel
from verify_service.scheduler.fair_share import FairShare, Tenant
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.scheduler.pass_share import ALL, Demand, PassShare, Turns
from verify_service.scheduler.preemption import Preemption
from verify_service.scheduler.prompt_chunks import PromptChunks, shares_of_chunk
from verify_service.scheduler.queue_places import QueuePlaces


class Scheduler:
    """First come, first served within a tenant; tenants by their weighted shares.

    Every running request that decodes gets its row in every step, as far as its tenant's rows do not slow others more
    than `PassShare` allows; what is left of `prefill_chunk` goes to prompts. A request starts once all its tokens find
    pages. One that decodes and finds no page takes those of the latest arrival of the tenant that holds most for its
    weight, which waits and later computes its KV again; so it is where a request finds no line or no pages to start
    with, and its tenant holds less than its share. Trees take nobody's pages. The oldest request never makes way.
    """

    def __init__(
        self,
        config: EngineConfig,
        memory: KVCacheManager,
        passes: PassShare | None = None,
    ) -> None:
        """Without `passes` all passes cost the same. `places` says who may be added."""
        self._config = config
        self._memory = memory
        self._tenants = FairShare()
        self._preemption = Preemption(self._tenants, memory, config.page_size)
        self.places = QueuePlaces(config.max_running + config.max_queued, self._tenants)
        self._passes = passes or PassShare(StepTimeModel([(1, 1, 1e-3)]), config.prefill_chunk)
        self._running: list[RequestState] = []
        self._most_running = config.max_running
        self._lines = list(range(config.max_running))[::-1]
        self._turns = ALL
        self._kept: Turns | None = None
        """Of a plan that was given up."""
        self._next: Tenant | None = None
        """Whose request others have made way for, and which starts before any other."""
        self._blocked = False
        """Whether the next one to start in this step finds no pages, so that nobody starts."""

    @property
    def running(self) -> tuple[RequestState, ...]:
        """In the order of arrival."""
        return tuple(self._running)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_expected(self) -> int:
        """Requests that run, and those that will as soon as the ones before them let them in."""
        return min(self._most_running, self.num_running + self.num_waiting)

    @property
    def num_waiting(self) -> int:
        return self._tenants.num_waiting

    @property
    def oldest_arrival(self) -> float | None:
        """When the oldest of the waiting requests came, in time.monotonic(); None where none waits."""
        heads = (tenant.waiting[0] for tenant in self._tenants if tenant.waiting)
        return min((state.request.arrival for state in heads), default=None)

    @property
    def num_tenants(self) -> int:
        """Tenants whose requests run or wait."""
        return len(self._tenants)

    @property
    def only_decodes(self) -> bool:
        """Whether the next step has the rows of all requests that decode, and no others."""
        if self._turns is not ALL:
            return False
        heads = (tenant.waiting[0] for tenant in self._tenants if tenant.waiting) if self._lines else ()
        return not any(map(self._may_start, heads)) and all(
            state.num_unscheduled_tokens <= 1 for state in self._running
        )

    def add(self, state: RequestState) -> None:
        """Queue a request behind all others of its tenant."""
        self._tenants.enter(state)

    def remove(self, state: RequestState, *, keep: bool) -> None:
        """Let go of a request, whether it waits or runs; its full pages stay in the prefix cache if `keep` is set."""
        waiting = state.kv.req_index < 0
        if not waiting:
            self._stop(state, keep=keep)
            self.places.freed()
        self._tenants.leave(state, waiting=waiting)

    def charge(self, rows: Sequence[ScheduledRequest]) -> None:
        """A step is launched with these rows and their trees, which count to the tenants' shares."""
        if len(self._tenants) > 1:
            for item in rows:
                self._tenants.charge(self._tenants.of(item.state), item.count + item.num_rows - 1)

    def schedule(self, *, may_preempt: bool = True) -> SchedulerOutput | None:
        """Plan a step, beside those under way. None where that takes a preemption and `may_preempt` forbids it.

        The plan is empty only where nothing can start and what runs, if anything does, waits for steps under way.
        Nobody may be preempted before these are decided: what a request has to come back with is not known yet.
        """
        plan = SchedulerOutput()
        self._blocked = False
        several = len(self._tenants) > 1
        if several and self.num_waiting and not self._make_way(plan, may_preempt=may_preempt):
            return None
        if not several:
            self._passes.forget()
            self._turns, self._kept = ALL, None
        else:
            # Turns are taken once a pass: those of a plan that was given up are the next one's.
            self._turns = self._kept = self._kept or self._passes.turns(self._demands())
        if not self._schedule_rows(plan, may_preempt=may_preempt):
            return None
        if not plan.rows and self._turns is not ALL:
            # Those for whose sake others take turns cannot use their rows: they wait for pages.
            self._turns = ALL
            if not self._schedule_rows(plan, may_preempt=may_preempt):
                return None
        self._kept = None
        return plan

    def _schedule_rows(self, plan: SchedulerOutput, *, may_preempt: bool) -> bool:
        """Plan decodes, then prompts; False where that takes a preemption which is forbidden."""
        plan.left_out = self._turns.left_out
        if not self._schedule_decodes(plan, may_preempt=may_preempt):
            return False
        self._schedule_prompts(plan)
        return True

    def _demands(self) -> list[Demand]:
        """What each tenant has for the next pass, prompts up to a chunk."""
        demands = {tenant.name: Demand(tenant) for tenant in self._tenants}
        most = self._config.prefill_chunk
        for state in self._running:
            demand, remaining = demands[state.parameters.tenant], state.num_unscheduled_tokens
            if remaining > 1:
                demand.prompt_rows = min(most, demand.prompt_rows + remaining)
            elif remaining == 1 and state.length < state.parameters.max_length:
                demand.decoding.append(state)
        for demand in demands.values():
            for state in islice(demand.tenant.waiting, len(self._lines)):
                if demand.prompt_rows >= most or not self._memory.fits(state):
                    break
                demand.prompt_rows = min(most, demand.prompt_rows + len(state.tokens))
        return [demand for demand in demands.values() if demand.decoding or demand.prompt_rows]

    def _schedule_decodes(self, plan: SchedulerOutput, *, may_preempt: bool) -> bool:
        """Plan the rows of all that decode; False where one finds no page and nobody may make way."""
        for state in self.running:
            length = state.length
            if (
                length - state.kv.num_computed_tokens != 1 or length >= state.parameters.max_length
            ):  # or decided to the end by steps under way
                continue
            if plan.left_out and state in plan.left_out:
                continue
            while state.kv.req_index >= 0 and not self._hold_last(state):
                if not may_preempt:
                    return False
                self._preempt(self._preemption.heaviest(self._running), plan)
            if state.kv.req_index >= 0:
                plan.rows.append(ScheduledRequest(state, 1))
        return True

    def _hold_last(self, state: RequestState) -> bool:
        """Hold a page for the last token; False where no page can be had but a request's own."""
        memory, length = self._memory, state.length + state.max_inflight_drafts
        return memory.grow(state, length) or (memory.reclaim(self._running) > 0 and memory.grow(state, length))

    def _make_way(self, plan: SchedulerOutput, *, may_preempt: bool) -> bool:
        """Have requests of tenants that hold more than their share make way for one that cannot start without.

        False where that would be so, but nobody may be preempted now. At most one request starts by it a step.
        """
        for tenant in self._tenants.by_service():
            if not tenant.waiting:
                continue
            state = tenant.waiting[0]
            fits = self._memory.fits(state)
            if fits and self._lines:
                continue
            if fits:
                victims = self._preemption.givers_of_a_line(self._running, tenant)
            else:
                victims = self._preemption.givers_of_pages(self._running, tenant, state)
            if not victims:
                continue
            if not may_preempt:
                return False
            for victim in victims:
                self._preempt(victim, plan)
            self._next = tenant
            if self._lines and self._may_start(state):
                self._start(tenant, plan)
            return True
        return True

    def _preempt(self, victim: RequestState, plan: SchedulerOutput) -> None:
        """Send a request back to the head of its tenant's queue, also if it starts or has rows in this plan."""
        self._stop(victim, keep=True)
        self._tenants.requeue(victim)
        plan.preempted.append(victim)
        plan.started = [state for state in plan.started if state is not victim]
        plan.rows = [item for item in plan.rows if item.state is not victim]

    def _schedule_prompts(self, plan: SchedulerOutput) -> None:
        """Share the chunk among tenants, then each one's part among its prompts; what one leaves goes to the others."""
        prompts = [state for state in self._running if state.num_unscheduled_tokens > 1]
        if not (prompts or self.num_waiting):
            return
        chunks = PromptChunks(self._config.prefill_chunk)
        for state in prompts:
            chunks.prompts.setdefault(state.parameters.tenant, []).append(state)
        if len(self._tenants) <= 1:
            for tenant in self._tenants:
                self._fill(tenant, chunks.left, chunks, plan)
        else:
            limits = self._turns.prompt_rows
            demands = [demand for demand in self._demands() if demand.prompt_rows]
            demands.sort(key=lambda demand: demand.tenant.served)
            used: list[int] = []
            for demand, rows in zip(demands, shares_of_chunk(demands, chunks.left, limits), strict=True):
                left = chunks.left
                self._fill(demand.tenant, rows, chunks, plan)
                used.append(left - chunks.left)
            for demand, rows in zip(demands, used, strict=True):
                most = limits.get(demand.tenant.name, self._config.prefill_chunk) - rows
                self._fill(demand.tenant, min(chunks.left, most), chunks, plan)
        for state, count in chunks.counts.items():
            if state not in plan.started:
                plan.rows.append(ScheduledRequest(state, count))
        plan.rows += [ScheduledRequest(state, chunks.counts[state]) for state in plan.started if state in chunks.counts]

    def _fill(self, tenant: Tenant, rows: int, chunks: PromptChunks, plan: SchedulerOutput) -> None:
        """Give a tenant's prompts so many rows, those that wait included."""
        before, after = chunks.order(tenant.name, rows)
        rows = chunks.give(before, rows)
        while rows and tenant.waiting and not plan.preempted and self._starts_next(tenant):
            rows = chunks.give([(self._start(tenant, plan), rows)], rows)
        chunks.give(after, rows)

    def _starts_next(self, tenant: Tenant) -> bool:
        """Whether the head of a tenant's queue may start; nobody overtakes one that waits for pages."""
        if self._next is not None and not self._next.waiting:
            self._next = None
        if self._blocked or not self._lines or self._next not in (None, tenant):
            return False
        self._blocked = not self._memory.fits(tenant.waiting[0])
        return not self._blocked and self._may_start(tenant.waiting[0])

    def _start(self, tenant: Tenant, plan: SchedulerOutput) -> RequestState:
        state = self._tenants.start(tenant)
        state.kv.req_index = self._lines.pop()
        insort(self._running, state, key=lambda running: running.parameters.arrival_number)
        self._memory.begin(state)
        plan.started.append(state)
        self._next = None
        return state

    def _may_start(self, state: RequestState) -> bool:
        """Whether all tokens of a waiting request fit, and nobody is about to share a page of its prompt with it."""
        return self._memory.fits(state) and not any(
            not running.prefilled and self._memory.would_share(running, state) for running in self._running
        )

    def _stop(self, state: RequestState, *, keep: bool) -> None:
        self._memory.end(state, keep=keep)
        self._running.remove(state)
        self._lines.append(state.kv.req_index)
        state.kv.req_index = -1
