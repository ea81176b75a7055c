"""Two tenants in virtual time: what one gets does not depend on how much the other asks for.

The scheduler is the real one; a pass takes what a table says, so that no figure depends on the machine.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from statistics import mean

import pytest

from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_time_model import StepTimeModel
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.scheduler.pass_share import PassShare
from verify_service.scheduler.scheduler import Scheduler
from verify_service.scheduler.tree_share import cut_trees, observe_wait

OUTPUT = 40
SECONDS = 30.0


@dataclass
class Clients:
    """Of one tenant: each asks again as soon as it is answered. Seconds to first tokens, and a token after that."""

    tenant: str
    count: int
    weight: float = 1.0
    prompt: tuple[int, int] = (20, 60)
    drafted: float | None = None
    """Seconds that a tree of 63 nodes takes to draft, where the clients insist on one at each step."""
    first: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    tokens: int = 0


@dataclass
class Server:
    """Passes of `base` ms and 1 ms more for each row."""

    base: float
    fair: bool = True
    num_pages: int = 4096
    max_running: int = 16
    now: float = 0.0

    def __post_init__(self) -> None:
        self.config = EngineConfig(
            num_pages=self.num_pages, page_size=8, max_running=self.max_running, prefill_chunk=64, fair=self.fair
        )
        self.costs = StepTimeModel([(1, rows, 1e-3 * (self.base + rows)) for rows in (1, 64)])
        self.memory = KVCacheManager(self.config, 512)
        self.passes = PassShare(self.costs, 64)
        self.scheduler = Scheduler(self.config, self.memory, self.passes)
        self.ready: dict[RequestState, float] = {}
        self.begun: dict[RequestState, tuple[Clients, float]] = {}
        self.first: dict[RequestState, float] = {}
        self.pick = random.Random(1)
        self.tickets = 0

    def ask(self, clients: Clients) -> None:
        self.tickets += 1
        prompt = [self.pick.randrange(3, 512) for _ in range(self.pick.randint(*clients.prompt))]
        state = admitted(self.config, prompt, request_id=self.tickets, tenant=clients.tenant, weight=clients.weight)
        self.begun[state] = clients, self.now
        self.scheduler.add(state)

    def run(self, *crowds: Clients) -> None:
        """Until `SECONDS`; the first crowd comes when the others are there."""
        for clients in crowds[1:]:
            for _ in range(clients.count):
                self.ask(clients)
        arrived = not crowds[1].count
        if arrived:
            for _ in range(crowds[0].count):
                self.ask(crowds[0])
        while self.now < SECONDS:
            if not arrived and self.now > 1.0:
                arrived = True
                for _ in range(crowds[0].count):
                    self.ask(crowds[0])
            plan = self.scheduler.schedule()
            assert plan is not None
            assert plan.rows
            self.attach_trees(plan.rows)
            self.scheduler.charge(plan.rows)
            self.now += 1e-3 * (self.base + sum(item.count + item.num_rows - 1 for item in plan.rows))
            for item in plan.rows:
                item.state.kv.num_computed_tokens = item.state.kv.num_written_tokens = item.base
            for state in [item.state for item in plan.rows if item.decides]:
                self.commit(state)

    def attach_trees(self, items: list[ScheduledRequest]) -> None:
        """Wait for the trees of these rows' requests, and verify what they may have of them."""
        awaiting = [item for item in items if item.state.draft.awaiting_tree]
        if not awaiting:
            return
        wait = max(0.0, max(self.ready[item.state] for item in awaiting) - self.now)
        self.now += wait
        observe_wait(self.passes, wait, items, {item.state.parameters.tenant for item in awaiting})
        drafts = [(item, chain((item.state.draft.max_tree_rows or 64) - 1)) for item in awaiting]
        for item, tree in cut_trees(self.passes, drafts, items, self.config.step_nodes):
            item.tree = tree

    def commit(self, state: RequestState) -> None:
        clients, begun = self.begun[state]
        state.tokens.append(7)
        state.prefilled = True
        clients.tokens += 1
        if state not in self.first:
            self.first[state] = self.now
            clients.first.append(self.now - begun)
        if clients.drafted is not None:
            nodes = (state.draft.max_tree_rows or 64) - 1
            state.draft.awaiting_tree, self.ready[state] = True, self.now + clients.drafted * nodes / 63
        if len(state.tokens) - state.prompt_length >= OUTPUT:
            clients.per_token.append((self.now - self.first[state]) / (OUTPUT - 1))
            self.scheduler.remove(state, keep=True)
            self.ask(clients)


def chain(nodes: int) -> TokenTree:
    return TokenTree((7,) * nodes, tuple(range(-1, nodes - 1)))


def light_beside(heavy: int, base: float, *, fair: bool = True, **settings: int) -> Clients:
    light = Clients("light", 2)
    Server(base, fair=fair, **settings).run(light, Clients("heavy", heavy))
    return light


@pytest.mark.parametrize("base", [1.0, 8.0, 60.0], ids=["rows cost most", "rows cost", "rows are cheap"])
@pytest.mark.parametrize("num_pages", [4096, 120], ids=["pages", "few pages"])
def test_ten_times_the_load_of_another_costs_at_most_half_as_much_again(base: float, num_pages: int) -> None:
    equal, crowded = (light_beside(heavy, base, num_pages=num_pages) for heavy in (2, 20))
    assert mean(crowded.per_token) <= 1.5 * mean(equal.per_token)
    assert mean(crowded.first) <= 1.5 * mean(equal.first)
    assert max(crowded.first) <= 3 * max(equal.first)


def test_in_order_of_arrival_it_costs_several_times_as_much() -> None:
    equal, crowded = (light_beside(heavy, 1.0, fair=False) for heavy in (2, 20))
    assert mean(crowded.per_token) > 2.5 * mean(equal.per_token)
    assert mean(crowded.first) > 2.5 * mean(equal.first)


@pytest.mark.parametrize("base", [1.0, 60.0])
def test_tokens_follow_weights_where_both_want_all(base: float) -> None:
    gold, basic = Clients("gold", 16, weight=3.0), Clients("basic", 16)
    Server(base).run(gold, basic)
    assert 2.4 <= gold.tokens / basic.tokens <= 3.6


@pytest.mark.parametrize("base", [1.0, 8.0, 60.0])
def test_nothing_is_kept_from_a_tenant_alone(base: float) -> None:
    fair, fcfs = Clients("only", 20), Clients("only", 20)
    Server(base).run(fair, Clients("none", 0))
    Server(base, fair=False).run(fcfs, Clients("none", 0))
    assert fair.tokens == fcfs.tokens
    assert fair.first == fcfs.first


def test_long_prompts_of_one_do_not_hold_up_the_stream_of_another() -> None:
    alone, beside = Clients("light", 1), Clients("light", 1)
    Server(8.0).run(alone, Clients("heavy", 1))
    Server(8.0).run(beside, Clients("heavy", 8, prompt=(400, 460)))
    assert mean(beside.per_token) <= 1.5 * mean(alone.per_token)


@pytest.mark.parametrize("base", [4.0, 60.0])
@pytest.mark.parametrize("drafted", [0.0, 0.02])
def test_neighbours_that_insist_on_trees_hold_a_plain_stream_up_by_half_at_most(base: float, drafted: float) -> None:
    def plain_beside(drafted: float | None, *, fair: bool = True) -> float:
        plain = Clients("plain", 1)
        Server(base, fair=fair).run(plain, *(Clients(f"n{i}", 1, drafted=drafted) for i in range(8)))
        return mean(plain.per_token)

    assert plain_beside(drafted) <= 1.5 * plain_beside(None)
    assert plain_beside(drafted, fair=False) > 3 * plain_beside(None, fair=False)
