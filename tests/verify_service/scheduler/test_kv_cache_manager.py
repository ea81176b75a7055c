"""Pages go to requests, to the cache and back, and none is lost on the way."""

from __future__ import annotations

import pytest

from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request_state import RequestState
from verify_service.scheduler.kv_cache_manager import KVCacheManager


def start(memory: KVCacheManager, state: RequestState, line: int) -> RequestState:
    assert memory.fits(state)
    state.kv.req_index = line
    memory.begin(state)
    return state


def compute(state: RequestState) -> None:
    state.kv.num_computed_tokens = state.kv.num_written_tokens = len(state.tokens) - 1


@pytest.mark.parametrize("size", [1, 4, 16, 64])
def test_a_second_request_reuses_full_pages_but_not_the_last_token(size: int) -> None:
    config = EngineConfig(num_pages=256, page_size=size)
    memory = KVCacheManager(config, 512)
    prompt = list(range(128))
    first = start(memory, admitted(config, prompt), 0)
    assert first.kv.num_computed_tokens == 0
    first.tokens.append(5)
    compute(first)
    memory.end(first, keep=True)
    second = start(memory, admitted(config, prompt, request_id=1), 1)
    assert second.kv.num_computed_tokens == (len(prompt) - 1) // size * size
    assert memory.page_table.entries[1, : len(second.kv.pages)].tolist() == second.kv.pages
    memory.end(second, keep=False)
    assert memory.free == memory.total - memory.cached


def test_without_the_cache_nothing_is_kept() -> None:
    config = EngineConfig(num_pages=16, page_size=4, prefix_cache=False)
    memory = KVCacheManager(config, 64)
    for _ in range(2):
        state = start(memory, admitted(config, range(20)), 0)
        assert state.kv.num_computed_tokens == 0
        compute(state)
        memory.end(state, keep=True)
        assert memory.free == memory.total
        assert memory.cached == 0


def test_tenants_do_not_share() -> None:
    config = EngineConfig(num_pages=32, page_size=4)
    memory = KVCacheManager(config, 64)
    first = start(memory, admitted(config, range(20), tenant="a"), 0)
    compute(first)
    memory.end(first, keep=True)
    assert start(memory, admitted(config, range(20), tenant="b"), 0).kv.num_computed_tokens == 0
    assert start(memory, admitted(config, range(20), tenant="a"), 1).kv.num_computed_tokens == 16


def test_growing_evicts_idle_pages_and_then_fails_without_a_change() -> None:
    config = EngineConfig(num_pages=8, page_size=4)
    memory = KVCacheManager(config, 64)
    first = start(memory, admitted(config, range(16)), 0)
    first.tokens.append(1)
    compute(first)
    memory.end(first, keep=True)
    assert memory.cached == 4
    second = start(memory, admitted(config, range(100, 108)), 0)
    assert memory.grow(second, 24)
    assert memory.cached == 2
    assert not memory.grow(second, 33)
    assert len(second.kv.pages) == 6
    assert memory.grow_up_to(second, 40) == 32
    assert memory.available == 0
    second.num_output_placeholders, second.max_inflight_drafts = 1, 16
    assert memory.reclaim([second]) == 1, "all but those of 25 tokens that steps under way may decide"
    second.num_output_placeholders = second.max_inflight_drafts = 0
    assert memory.reclaim([second]) == 5
    assert len(second.kv.pages) == 2
    memory.end(second, keep=False)
    assert memory.free == 8


def test_sharing_moves_pages_to_the_cache_once() -> None:
    config = EngineConfig(num_pages=16, page_size=4)
    memory = KVCacheManager(config, 64)
    twins = [start(memory, admitted(config, range(12), request_id=i), i) for i in range(2)]
    for twin in twins:
        twin.tokens.append(9)
        compute(twin)
        memory.cache_full_pages(twin)
    assert twins[0].kv.pages[:3] == twins[1].kv.pages[:3]
    assert memory.page_table.entries[1, :3].tolist() == twins[0].kv.pages[:3]
    assert memory.free == 16 - 3
    for twin in twins:
        memory.end(twin, keep=True)
    assert (memory.free, memory.cached) == (13, 3)


def test_would_share_looks_one_page_ahead() -> None:
    config = EngineConfig(num_pages=16, page_size=4)
    memory = KVCacheManager(config, 64)
    running = start(memory, admitted(config, [1, 2, 3, 4, 5, 6]), 0)
    assert memory.would_share(running, admitted(config, [1, 2, 3, 4, 9]))
    assert not memory.would_share(running, admitted(config, [1, 2, 3, 4]))
    assert not memory.would_share(running, admitted(config, [1, 2, 3, 5, 9]))
    assert not memory.would_share(running, admitted(config, [1, 2, 3, 4, 9], tenant="other"))


def test_only_settled_pages_are_shared() -> None:
    config = EngineConfig(num_pages=16, page_size=4)
    memory = KVCacheManager(config, 64)
    state = start(memory, admitted(config, range(12)), 0)
    state.kv.num_written_tokens, state.kv.num_computed_tokens = 5, 12
    memory.end(state, keep=True)
    assert (memory.cached, memory.free) == (1, 15)
    assert (state.kv.num_written_tokens, state.kv.num_computed_tokens) == (0, 0)
    again = start(memory, admitted(config, range(12)), 0)
    assert (again.kv.num_written_tokens, again.kv.num_computed_tokens) == (4, 4)
