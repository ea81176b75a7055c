"""Rows of one pass: where tokens stand, where their KV goes, and what each of them sees."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.model_runner.cpu_batch import CpuBatchBuilder

SCRATCH = 1000


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(1, 15))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    return TokenTree(tuple(draw(st.lists(st.integers(0, 511), min_size=size, max_size=size))), parents)


@st.composite
def plans(draw: st.DrawFn) -> tuple[EngineConfig, np.ndarray, list[ScheduledRequest]]:
    size = draw(st.integers(1, 8))
    config = EngineConfig(num_pages=200, page_size=size, max_running=4, max_nodes=16, prefill_chunk=64)
    table = np.zeros((4, 64), dtype=np.int32)
    pages = list(draw(st.permutations(range(200))))
    items: list[ScheduledRequest] = []
    for line in range(draw(st.integers(1, 4))):
        state: RequestState = admitted(config, draw(st.lists(st.integers(0, 511), min_size=1, max_size=12)))
        state.kv.req_index = line
        state.kv.pages = [pages.pop() for _ in range(-(-(len(state.tokens) + 16) // size))]
        table[line, : len(state.kv.pages)] = state.kv.pages
        state.kv.num_computed_tokens = draw(st.integers(0, len(state.tokens) - 1))
        item = ScheduledRequest(state, draw(st.integers(1, state.num_unscheduled_tokens)))
        item.tree = draw(st.none() | trees()) if item.decides else None
        items.append(item)
    return config, table, items


@given(plan=plans())
@settings(max_examples=60)
def test_rows_follow_the_plan(plan: tuple[EngineConfig, np.ndarray, list[ScheduledRequest]]) -> None:
    config, table, items = plan
    size = config.page_size
    builder = CpuBatchBuilder(config, table, SCRATCH)
    rows = builder.build(items)
    batch = rows.batch
    row = scratch = 0
    logit_rows: list[int] = []
    for item in items:
        state = item.state
        for position in range(state.kv.num_computed_tokens, state.kv.num_computed_tokens + item.count):
            assert batch.token_ids[row] == state.tokens[position]
            assert batch.positions[row] == position
            assert batch.write_slots[row] == state.kv.pages[position // size] * size + position % size
            assert batch.prefix_lengths[row] == position + 1
            assert batch.num_ancestors[row] == 0
            assert batch.page_lines[row] == state.kv.req_index
            row += 1
        if item.decides:
            logit_rows.append(row - 1)
        if item.tree is None:
            continue
        for node in range(len(item.tree)):
            path = item.tree.path(node)
            assert batch.token_ids[row] == item.tree.token_ids[node]
            assert batch.positions[row] == len(state.tokens) - 1 + len(path)
            assert batch.write_slots[row] == SCRATCH + scratch + node
            assert batch.prefix_lengths[row] == len(state.tokens)
            assert batch.num_ancestors[row] == len(path)
            assert batch.ancestor_slots[row, : len(path)].tolist() == [SCRATCH + scratch + above for above in path]
            assert batch.page_lines[row] == state.kv.req_index
            logit_rows.append(row)
            row += 1
        scratch += len(item.tree)
    assert len(batch) == row
    assert batch.logit_rows.tolist() == logit_rows
    assert rows.deciding == [item for item in items if item.decides]
    assert rows.positions.tolist() == [batch.positions[at] + 1 for at in logit_rows]
    assert rows.lines.tolist() == [batch.page_lines[at] for at in logit_rows]
    for array in (batch.token_ids, batch.ancestor_slots, batch.logit_rows, rows.positions, rows.lines):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
