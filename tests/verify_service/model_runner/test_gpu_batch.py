"""Rows of a device's pass: where tokens stand, where their KV goes, and which spans they lie in."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.models.gpu.batch.plan_kernels import committed_rows
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import SamplingParams
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.kv_cache.page_table import PageTable
from verify_service.model_runner.gpu_batch import GpuBatchBuilder

SCRATCH = 1000


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(1, 15))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    return TokenTree(tuple(draw(st.lists(st.integers(0, 511), min_size=size, max_size=size))), parents)


@st.composite
def plans(draw: st.DrawFn) -> tuple[int, PageTable, list[ScheduledRequest]]:
    size = draw(st.integers(1, 8))
    config = EngineConfig(num_pages=200, page_size=size, max_running=5)
    table = PageTable(5, 512 // size)
    pages = list(draw(st.permutations(range(200))))
    items: list[ScheduledRequest] = []
    for line in draw(st.permutations(range(draw(st.integers(1, 5))))):
        prompt = draw(st.lists(st.integers(0, 511), min_size=1, max_size=12))
        logprobs = draw(st.none() | st.just(0))
        state = admitted(config, prompt, sampling=SamplingParams(seed=1, logprobs=logprobs))
        state.kv.req_index = line
        state.num_output_placeholders = draw(st.integers(0, 1))
        state.kv.pages = [pages.pop() for _ in range(-(-(state.length + 2) // size))]
        table.write(line, 0, state.kv.pages)
        state.kv.num_computed_tokens = (
            len(prompt) if state.num_output_placeholders else draw(st.integers(0, len(prompt) - 1))
        )
        item = ScheduledRequest(state, draw(st.integers(1, state.num_unscheduled_tokens)))
        item.tree = draw(st.none() | trees()) if item.decides and not state.num_output_placeholders else None
        items.append(item)
    return size, table, items


def span_rows(plan: PassPlan) -> list[int]:
    spans = [*plan.decodes.tolist(), *plan.prefills.tolist()]
    return [row for first, count, _, _ in spans for row in range(first, first + count)]


@given(case=plans())
@settings(max_examples=100)
def test_rows_follow_the_items(case: tuple[int, PageTable, list[ScheduledRequest]]) -> None:
    size, table, items = case
    plan, deciding = GpuBatchBuilder(table, size, SCRATCH).build(items)
    for field in fields(plan):
        value = getattr(plan, field.name)
        assert not isinstance(value, np.ndarray) or (value.dtype == np.int32 and value.flags.c_contiguous)
    rows = sum(item.count + item.num_rows - 1 for item in items)
    assert span_rows(plan) == list(range(rows))
    assert plan.in_order
    assert plan.has_trees == any(item.tree is not None for item in items)
    assert plan.keep_logits == any(
        item.decides and item.state.parameters.sampling.logprobs is not None for item in items
    )
    assert sorted(map(id, deciding)) == sorted(id(item) for item in items if item.decides)

    where = {(int(plan.lines[row]), int(plan.positions[row])): row for row in range(rows) if plan.parents[row] == -2}
    for item in items:
        state = item.state
        for position in range(item.first, item.base):
            row = where.pop((state.kv.req_index, position))
            assert plan.token_ids[row] == (state.tokens[position] if position < len(state.tokens) else -1)
            assert plan.write_slots[row] == state.kv.pages[position // size] * size + position % size
            assert plan.prefix_lengths[row] == position + 1
            assert plan.root_rows[row] == row
    assert where == {}


@given(case=plans())
@settings(max_examples=100)
def test_each_deciding_item_has_its_root_and_nodes_in_a_row(
    case: tuple[int, PageTable, list[ScheduledRequest]],
) -> None:
    size, table, items = case
    plan, deciding = GpuBatchBuilder(table, size, SCRATCH).build(items)
    logit = scratch = 0
    for item, (first, count, line, base) in zip(deciding, plan.deciding.tolist(), strict=True):
        assert (first, count, line, base) == (logit, item.num_rows, item.state.kv.req_index, item.base)
        root = int(plan.logit_rows[first])
        assert plan.logit_rows[first : first + count].tolist() == list(range(root, root + count))
        assert (plan.lines[root], plan.positions[root], plan.parents[root]) == (line, base - 1, -2)
        logit += count
        if item.tree is None:
            continue
        assert [root, count, line, base] in plan.decodes.tolist()
        nodes = slice(root + 1, root + count)
        assert plan.token_ids[nodes].tolist() == list(item.tree.token_ids)
        assert plan.parents[nodes].tolist() == list(item.tree.parents)
        assert plan.positions[nodes].tolist() == [base - 1 + depth for depth in item.tree.depths]
        assert plan.write_slots[nodes].tolist() == list(range(SCRATCH + scratch, SCRATCH + scratch + count - 1))
        assert set(plan.root_rows[nodes].tolist()) == {root}
        assert set(plan.prefix_lengths[nodes].tolist()) == {base}
        assert set(plan.lines[nodes].tolist()) == {line}
        scratch += count - 1
    assert logit == len(plan.logit_rows)


def test_spans_of_decodes_come_first() -> None:
    config = EngineConfig(num_pages=64, page_size=4)
    table = PageTable(4, 128)
    states = [admitted(config, range(10 * line, 10 * line + 8)) for line in range(3)]
    for line, state in enumerate(states):
        state.kv.req_index = line
        table.write(line, 0, [3 * line, 3 * line + 1, 3 * line + 2])
    states[1].kv.num_computed_tokens = 7
    items = [
        ScheduledRequest(states[0], 5),
        ScheduledRequest(states[1], 1),
        ScheduledRequest(states[2], 8, TokenTree.chain([1, 2])),
    ]
    plan, deciding = GpuBatchBuilder(table, 4, SCRATCH).build(items)
    assert plan.decodes.tolist() == [[0, 1, 1, 8], [1, 3, 2, 8]]
    assert plan.prefills.tolist() == [[4, 5, 0, 0], [9, 7, 2, 0]]
    assert deciding == [items[1], items[2]]
    assert plan.token_ids.tolist() == [17, 27, 1, 2, 0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 25, 26]


@given(case=plans(), most=st.integers(1, 20), stride=st.integers(0, 3))
@settings(max_examples=50)
def test_rows_of_committed_tokens_are_where_the_plan_has_them(
    case: tuple[int, PageTable, list[ScheduledRequest]], most: int, stride: int
) -> None:
    size, table, items = case
    builder = GpuBatchBuilder(table, size, SCRATCH)
    plan, deciding = builder.build(items)
    wanted = list(reversed(items))
    spans = [(items.index(item), most, 100 * place, stride) for place, item in enumerate(wanted)]
    rows = committed_rows(builder.planned_rows(items), np.array(spans, np.int64).reshape(-1, 4)).tolist()
    tokens = builder.state_rows(items, {})
    for place, item in enumerate(wanted):
        reached = min(most, item.count + item.depth)
        own, rows = rows[:reached], rows[reached:]
        root = tokens[item][-1]
        order = deciding.index(item) if item.decides else 0
        assert not item.decides or root == plan.logit_rows[plan.deciding[order, 0]]
        expected = [(row, -1, 0) for row in tokens[item]] + [(root, node, order) for node in range(item.depth)]
        assert own == [[*each, 100 * place + stride * number] for number, each in enumerate(expected[:reached])]
    assert rows == []
