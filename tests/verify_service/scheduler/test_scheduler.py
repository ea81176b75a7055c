"""First come, first served; decoding is never starved; the latest arrival makes way."""

from __future__ import annotations

from dataclasses import replace

from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import SchedulerOutput
from verify_service.scheduler.kv_cache_manager import KVCacheManager
from verify_service.scheduler.scheduler import Scheduler


class Bench:
    """A scheduler whose steps are carried out without a model."""

    def __init__(self, **settings: int | bool) -> None:
        self.config = EngineConfig(**({"num_pages": 64, "page_size": 4} | settings))  # type: ignore[arg-type]  # mixed
        self.memory = KVCacheManager(self.config, 512)
        self.scheduler = Scheduler(self.config, self.memory)

    def add(self, request_id: int, length: int, first: int = 0) -> RequestState:
        prompt = [(first + i) % 512 for i in range(length)]
        state = admitted(self.config, prompt, request_id=request_id)
        self.scheduler.add(state)
        return state

    def step(self) -> SchedulerOutput:
        plan = self.scheduler.schedule()
        assert plan is not None
        deciding = [item for item in plan.rows if item.decides]
        for item in plan.rows:
            item.state.kv.num_computed_tokens = item.state.kv.num_written_tokens = item.base
        for item in deciding:
            item.state.tokens.append(7)
            item.state.prefilled = True
        return plan


def rows(plan: SchedulerOutput) -> list[tuple[int, int]]:
    return [(item.state.parameters.arrival_number, item.count) for item in plan.rows]


def test_prompts_share_the_chunk_in_order_of_arrival() -> None:
    bench = Bench(prefill_chunk=10)
    for request_id, length in enumerate((4, 12, 3)):
        bench.add(request_id, length, first=100 * request_id)
    assert rows(bench.step()) == [(0, 4), (1, 6)]
    assert rows(bench.step()) == [(0, 1), (1, 6), (2, 3)]
    assert rows(bench.step()) == [(0, 1), (1, 1), (2, 1)]


def test_decoding_goes_on_beside_a_long_prompt() -> None:
    bench = Bench(prefill_chunk=8)
    bench.add(0, 4)
    bench.step()
    bench.add(1, 80, first=100)
    for _ in range(10):
        plan = rows(bench.step())
        assert plan[0] == (0, 1)
        assert plan[1] == (1, 8)


def test_at_most_max_running_run() -> None:
    bench = Bench(max_running=2, max_queued=1)
    states = [bench.add(request_id, 3, first=100 * request_id) for request_id in range(3)]
    assert rows(bench.step()) == [(0, 3), (1, 3)]
    assert bench.scheduler.places.full
    bench.scheduler.remove(states[0], keep=True)
    assert not bench.scheduler.places.full
    assert rows(bench.step()) == [(1, 1), (2, 3)]


def test_the_head_of_the_queue_is_not_overtaken() -> None:
    bench = Bench(num_pages=10, prefix_cache=False)
    bench.add(0, 20)
    bench.step()
    bench.add(1, 30, first=100)
    bench.add(2, 2, first=200)
    assert rows(bench.step()) == [(0, 1)]
    assert bench.scheduler.num_waiting == 2


def test_the_latest_arrival_makes_way_and_comes_back() -> None:
    bench = Bench(num_pages=6, prefix_cache=False)
    old, young = bench.add(0, 11), bench.add(1, 11, first=100)
    bench.step()
    assert rows(bench.step()) == [(0, 1), (1, 1)]
    assert len(old.kv.pages) == len(young.kv.pages) == 3
    plan = bench.step()
    assert rows(plan) == [(0, 1)]
    assert plan.preempted == [young]
    assert (young.kv.req_index, young.kv.pages, young.kv.num_computed_tokens) == (-1, [], 0)
    bench.scheduler.remove(old, keep=False)
    plan = bench.step()
    assert plan.started == [young]
    assert rows(plan) == [(1, 13)]
    bench.scheduler.remove(young, keep=False)
    assert bench.memory.free == 6


def test_a_request_may_have_to_make_way_for_itself_alone() -> None:
    bench = Bench(num_pages=4, prefix_cache=False)
    old, young = bench.add(0, 9), bench.add(1, 4, first=100)
    bench.step()
    plan = bench.step()
    assert rows(plan) == [(0, 1)]
    assert plan.preempted == [young]
    assert old.kv.req_index >= 0


def test_leftovers_of_trees_go_before_requests() -> None:
    bench = Bench(num_pages=6, prefix_cache=False)
    old, young = bench.add(0, 11), bench.add(1, 3, first=100)
    bench.step()
    assert bench.memory.grow(young, 12)
    bench.step()
    plan = bench.step()
    assert plan.preempted == []
    assert rows(plan) == [(0, 1), (1, 1)]
    assert (len(old.kv.pages), len(young.kv.pages)) == (4, 2)


def test_a_preempted_request_finds_its_pages_in_the_cache() -> None:
    bench = Bench(num_pages=7)
    old, young = bench.add(0, 11), bench.add(1, 11, first=100)
    plan = bench.step()
    while not plan.preempted:
        plan = bench.step()
    assert plan.preempted == [young]
    bench.scheduler.remove(old, keep=False)
    plan = bench.step()
    assert plan.started == [young]
    assert plan.rows[0].count < len(young.tokens) - 1


def test_an_equal_prompt_waits_for_the_pages_of_the_first() -> None:
    bench = Bench(prefill_chunk=32)
    first = bench.add(0, 12)
    bench.add(1, 12)
    assert rows(bench.step()) == [(0, 12)]
    bench.memory.cache_full_pages(first)
    assert rows(bench.step()) == [(0, 1), (1, 4)]


def launched(bench: Bench) -> SchedulerOutput:
    """A step that is under way when the next one is planned."""
    plan = bench.scheduler.schedule(may_preempt=False)
    assert plan is not None
    for item in plan.rows:
        item.state.kv.num_computed_tokens, item.state.num_output_placeholders = (
            item.base,
            item.state.num_output_placeholders + item.decides,
        )
    return plan


def test_a_request_under_way_gets_its_next_row() -> None:
    bench = Bench()
    state = bench.add(0, 7)
    assert [(item.first, item.base, item.decides) for item in launched(bench).rows] == [(0, 7, True)]
    assert len(state.kv.pages) == 2
    assert [(item.first, item.base, item.decides) for item in launched(bench).rows] == [(7, 8, True)]
    assert [(item.first, item.base, item.decides) for item in launched(bench).rows] == [(8, 9, True)]
    assert len(state.kv.pages) == 3


def test_a_planned_row_does_not_change_with_its_request() -> None:
    bench = Bench(prefill_chunk=4)
    bench.add(0, 7)
    (chunk,) = launched(bench).rows
    launched(bench)
    assert (chunk.first, chunk.base, chunk.decides) == (0, 4, False)


def test_nothing_is_planned_beyond_the_limit() -> None:
    bench = Bench()
    state = bench.add(0, 7)
    state.parameters = replace(state.parameters, max_length=9)
    assert [rows(launched(bench)) for _ in range(3)] == [[(0, 7)], [(0, 1)], []]
    other = bench.add(1, 3, first=100)
    assert launched(bench).started == [other]


def test_nobody_makes_way_while_steps_are_under_way() -> None:
    bench = Bench(num_pages=6, prefix_cache=False)
    old, young = bench.add(0, 11), bench.add(1, 11, first=100)
    launched(bench)
    launched(bench)
    assert bench.scheduler.schedule(may_preempt=False) is None
    assert bench.scheduler.running == (old, young)
    for state in (old, young):
        state.tokens += [7] * state.num_output_placeholders
        state.num_output_placeholders = 0
    plan = bench.scheduler.schedule()
    assert plan is not None
    assert (rows(plan), plan.preempted) == ([(0, 1)], [young])
    assert len(young.tokens) == 13


def test_leftovers_of_trees_may_go_while_steps_are_under_way() -> None:
    bench = Bench(num_pages=6, prefix_cache=False)
    old, young = bench.add(0, 11), bench.add(1, 3, first=100)
    bench.step()
    assert bench.memory.grow(young, 12)
    launched(bench)
    assert rows(launched(bench)) == [(0, 1), (1, 1)]
    assert (len(old.kv.pages), len(young.kv.pages)) == (4, 2)


def test_removing_a_waiting_request() -> None:
    bench = Bench(max_running=1)
    bench.add(0, 4)
    waiting = bench.add(1, 4, first=100)
    bench.step()
    bench.scheduler.remove(waiting, keep=True)
    assert bench.scheduler.num_waiting == 0
