"""Several tenants in one scheduler: who starts, who makes way, and that everybody comes to an end."""

from __future__ import annotations

import random

import pytest

from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import SchedulerOutput
from verify_service.core.step_time_model import StepTimeModel
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.scheduler.pass_share import SLOWDOWN, PassShare
from verify_service.scheduler.scheduler import Scheduler


class Bench:
    """A scheduler whose steps are carried out without a model; a row costs 1 ms, a pass `base` ms besides."""

    def __init__(self, base: float = 1e6, **settings: int | bool) -> None:
        self.config = EngineConfig(**({"num_pages": 256, "page_size": 4} | settings))  # type: ignore[arg-type]  # mixed
        self.memory = KVCacheManager(self.config, 512)
        costs = StepTimeModel([(1, rows, 1e-3 * (base + rows)) for rows in (1, 64)])
        self.scheduler = Scheduler(self.config, self.memory, PassShare(costs, self.config.prefill_chunk))
        self.ticket = 0
        self.preempted = 0

    def add(self, tenant: str, length: int = 4, weight: float = 1.0) -> RequestState:
        self.ticket += 1
        prompt = [(97 * self.ticket + i) % 512 for i in range(length)]
        state = admitted(self.config, prompt, request_id=self.ticket, tenant=tenant, weight=weight)
        self.scheduler.add(state)
        return state

    def step(self) -> SchedulerOutput:
        plan = self.scheduler.schedule()
        assert plan is not None
        self.scheduler.charge(plan.rows)
        self.preempted += len(plan.preempted)
        assert len({item.state for item in plan.rows}) == len(plan.rows)
        assert all(item.state.kv.req_index >= 0 and item.count > 0 for item in plan.rows)
        assert all(state.kv.req_index >= 0 for state in plan.started)
        assert sum(item.count for item in plan.rows if item.count > 1) <= self.config.prefill_chunk
        deciding = [item for item in plan.rows if item.decides]
        for item in plan.rows:
            assert len(item.state.kv.pages) * self.config.page_size >= item.base
            item.state.kv.num_computed_tokens = item.state.kv.num_written_tokens = item.base
        for item in deciding:
            item.state.tokens.append(7)
            item.state.prefilled = True
        return plan

    def end(self, limit: int) -> int:
        """Let go of all with so many output tokens; returns how many."""
        over = [state for state in self.scheduler.running if len(state.tokens) - state.prompt_length >= limit]
        for state in over:
            self.scheduler.remove(state, keep=True)
        return len(over)


def counts(plan: SchedulerOutput) -> dict[str, int]:
    found: dict[str, int] = {}
    for item in plan.rows:
        found[item.state.parameters.tenant] = found.get(item.state.parameters.tenant, 0) + item.count
    return found


def test_a_newcomer_gets_a_line_at_once_from_who_has_most() -> None:
    bench = Bench(max_running=4)
    heavy = [bench.add("heavy") for _ in range(8)]
    bench.step()
    assert list(bench.scheduler.running) == heavy[:4]
    light = bench.add("light")
    plan = bench.step()
    assert (plan.started, plan.preempted) == ([light], [heavy[3]])
    second = bench.add("light")
    plan = bench.step()
    assert (plan.started, plan.preempted) == ([second], [heavy[2]])
    bench.add("light")
    for _ in range(10):
        assert not bench.step().preempted
    bench.scheduler.remove(second, keep=True)
    assert bench.step().started


def test_a_newcomer_that_makes_way_in_its_own_plan_has_not_started() -> None:
    bench = Bench(num_pages=8, max_running=3, prefix_cache=False)
    for _ in range(3):
        bench.add("a", 4)
    bench.step()
    newcomer = bench.add("b", 20)
    plan = bench.step()
    assert newcomer in plan.preempted
    assert not plan.started
    for _ in range(40):
        bench.step()
        bench.end(8)
    assert newcomer.prefilled


def test_a_tenant_that_cannot_give_hides_nobody_who_can() -> None:
    bench = Bench(max_running=10)
    bench.add("light", weight=0.1)
    crowd = [bench.add("crowd") for _ in range(9)]
    bench.step()
    newcomer = bench.add("newcomer")
    plan = bench.step()
    assert (plan.started, plan.preempted) == ([newcomer], [crowd[-1]])


def test_lines_follow_weights() -> None:
    bench = Bench(max_running=8)
    for _ in range(20):
        bench.add("one", weight=1.0)
    bench.step()
    for _ in range(20):
        bench.add("three", weight=3.0)
    for _ in range(20):
        bench.step()
    running = [state.parameters.tenant for state in bench.scheduler.running]
    assert (running.count("one"), running.count("three")) == (2, 6)


def test_who_was_served_least_starts_next() -> None:
    bench = Bench(max_running=2, prefill_chunk=8)
    for _ in range(2):
        bench.add("heavy", 8)
    light = bench.add("light", 8)
    bench.step()
    assert light in bench.scheduler.running


def test_prompts_of_two_tenants_share_the_chunk() -> None:
    bench = Bench(prefill_chunk=64)
    for _ in range(4):
        bench.add("heavy", 200)
    bench.step()
    bench.add("light", 200)
    assert counts(bench.step()) == {"heavy": 32, "light": 32}


def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one() -> None:
    bench = Bench(prefill_chunk=16)
    long = bench.add("only", 400)
    bench.step()
    short = bench.add("only", 8)
    done = [bench.step() for _ in range(2)]
    assert short.prefilled
    assert all(any(item.state is long and item.count >= 12 for item in plan.rows) for plan in done)


def test_many_short_prompts_do_not_starve_a_long_one() -> None:
    bench = Bench(prefill_chunk=16, max_running=8)
    long = bench.add("only", 400)
    for _ in range(40):
        bench.add("only", 12)
        bench.step()
        bench.end(1)
        if long.prefilled:
            break
    assert long.prefilled


def test_the_tenant_with_most_pages_makes_way_when_pages_run_out() -> None:
    bench = Bench(num_pages=16, prefix_cache=False)
    old = bench.add("heavy", 18)
    heavy = bench.add("heavy", 18)
    light = bench.add("light", 14)
    for _ in range(3):
        bench.step()
    plan = bench.step()
    while not plan.preempted:
        plan = bench.step()
    assert plan.preempted == [heavy]
    assert {old, light} <= set(bench.scheduler.running)


def test_a_prompt_gets_pages_of_who_holds_more_than_a_share() -> None:
    bench = Bench(num_pages=20, prefix_cache=False)
    heavy = [bench.add("heavy", 18) for _ in range(4)]
    bench.step()
    assert len(bench.scheduler.running) == 4
    light = bench.add("light", 18)
    plan = bench.step()
    assert (plan.started, plan.preempted) == ([light], [heavy[3]])


def test_nobody_makes_way_for_a_start_while_steps_are_under_way() -> None:
    bench = Bench(max_running=2)
    for _ in range(2):
        bench.add("heavy")
    bench.step()
    light = bench.add("light")
    assert bench.scheduler.schedule(may_preempt=False) is None
    assert bench.step().started == [light]


def test_a_light_stream_has_a_row_in_every_bounded_pass() -> None:
    bench = Bench(base=0.0, prefill_chunk=32)
    light = bench.add("light")
    bench.step()
    heavy = [bench.add("heavy") for _ in range(12)]
    for _ in range(60):
        bench.step()
    length, before = len(light.tokens), [len(state.tokens) for state in heavy]
    plans = [bench.step() for _ in range(100)]
    assert len(light.tokens) == length + 100
    assert all(sum(counts(plan).values()) <= SLOWDOWN * 2 for plan in plans)
    assert not bench.scheduler.only_decodes
    made = [len(state.tokens) - length for state, length in zip(heavy, before, strict=True)]
    assert min(made) >= 16
    assert max(made) - min(made) <= 1


def test_one_tenant_alone_is_not_bounded() -> None:
    bench = Bench(base=0.0)
    for _ in range(12):
        bench.add("only")
    bench.step()
    assert len(bench.step().rows) == 12
    assert bench.scheduler.only_decodes


@pytest.mark.parametrize("seed", range(6))
def test_everybody_comes_to_an_end_whatever_comes(seed: int) -> None:
    pick = random.Random(seed)
    bench = Bench(
        base=pick.choice([0.0, 4.0, 1e6]),
        num_pages=pick.choice([24, 40, 200]),
        prefix_cache=pick.random() < 0.5,
        max_running=pick.choice([2, 5, 16]),
        prefill_chunk=pick.choice([8, 64]),
    )
    weights = {"a": 1.0, "b": 3.0, "c": 0.5}
    added = ended = 0
    for _ in range(60):
        for _ in range(pick.choice([0, 0, 1, 4])):
            tenant = pick.choice("aaaabc")
            bench.add(tenant, pick.randint(1, 60), weights[tenant])
            added += 1
        bench.step()
        ended += bench.end(12)
    for _ in range(4000):
        if ended == added:
            break
        assert bench.step().rows
        ended += bench.end(12)
    assert ended == added
    assert bench.preempted < 20 * added
    assert bench.memory.available == bench.config.num_pages
