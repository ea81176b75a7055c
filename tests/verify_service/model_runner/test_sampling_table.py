"""Rows carry each request's parameters and what lies on each node's own path."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.ops.sampling import SamplingRows, sample
from slipstream_kernels.token_tree import TokenTree
from support.plain_reference import choose, processed
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import SamplingParams
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.model_runner.sampling_table import SamplingTable

CONFIG = EngineConfig(num_pages=64)
VOCAB, EOS = 512, 2
TREE = TokenTree((11, 12, 13, 11, 14), (-1, 0, 0, 2, -1))
EDITED = SamplingParams(
    temperature=0.9,
    seed=5,
    repetition_penalty=1.4,
    presence_penalty=0.7,
    frequency_penalty=-0.4,
    min_tokens=4,
    stop_token_ids=(20, 21),
    logit_bias=((30, 4.0), (31, -4.0)),
    top_k=40,
    top_p=0.95,
)


def running(params: SamplingParams, line: int, output: tuple[int, ...] = ()) -> RequestState:
    state = admitted(CONFIG, (11, 50, 51), output=output, sampling=params)
    state.kv.req_index = line
    state.kv.num_computed_tokens = len(state.tokens) - 1
    return state


def gather(table: SamplingTable, items: list[ScheduledRequest]) -> SamplingRows:
    lines = [item.state.kv.req_index for item in items for _ in range(item.num_rows)]
    positions = [
        len(item.state.tokens) + depth
        for item in items
        for depth in (0, *(item.tree.depths if item.tree is not None else ()))
    ]
    return table.gather(items, np.array(lines, dtype=np.int32), np.array(positions, dtype=np.int32))


def spread(offsets: np.ndarray, values: np.ndarray) -> list[list[int]]:
    return [values[a:b].tolist() for a, b in pairwise(offsets.tolist())]


def test_paths_hold_each_nodes_ancestors_and_itself() -> None:
    table = SamplingTable(4, VOCAB, (EOS,))
    plain, edited = running(SamplingParams(seed=1), 3), running(EDITED, 1)
    for state in (plain, edited):
        table.begin(state)
    rows = gather(table, [ScheduledRequest(plain, 1, TREE), ScheduledRequest(edited, 1, TREE)])
    paths = [[], [11], [11, 12], [11, 13], [11, 13, 11], [14]]
    assert spread(rows.path_offsets, rows.path_tokens) == [[]] * 6 + paths
    assert rows.history.tolist() == [-1] * 6 + [1] * 6


def test_min_tokens_masks_by_depth() -> None:
    table = SamplingTable(1, VOCAB, (EOS,))
    state = running(EDITED, 0, output=(60, 61))
    table.begin(state)
    rows = gather(table, [ScheduledRequest(state, 1, TREE)])
    ids = [EOS, 20, 21]
    assert spread(rows.mask_offsets, rows.mask_ids) == [ids, ids, [], [], [], ids]


def test_counts_follow_commits_and_restarts() -> None:
    table = SamplingTable(2, VOCAB, (EOS,))
    state = running(EDITED, 1, output=(60, 61, 60))
    table.begin(state)
    table.commit(state, (60, 62))
    state.tokens.extend((60, 62))
    rows = gather(table, [ScheduledRequest(state, 1)])
    assert Counter(dict(enumerate(rows.output_counts[1].tolist()))) == Counter({60: 3, 61: 1, 62: 1})
    assert np.flatnonzero(rows.prompt_seen[1]).tolist() == [11, 50, 51]
    state.kv.req_index = 0
    table.begin(state)
    assert rows.output_counts[0].tolist() == rows.output_counts[1].tolist()


def test_a_line_forgets_its_former_request() -> None:
    table = SamplingTable(1, VOCAB, (EOS,))
    table.begin(running(EDITED, 0, output=(60,)))
    fresh = running(SamplingParams(seed=1), 0)
    table.begin(fresh)
    rows = gather(table, [ScheduledRequest(fresh, 1, TREE)])
    assert rows.history.tolist() == [-1] * 6
    for offsets in (rows.path_offsets, rows.bias_offsets, rows.mask_offsets):
        assert offsets.tolist() == [0] * 7


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_rows_sample_as_the_reference_does(model: CausalLM, temperature: float) -> None:
    table = SamplingTable(3, VOCAB, (EOS,))
    states = [
        running(replace(EDITED, temperature=temperature), 2, output=(60, 61)),
        running(SamplingParams(temperature=temperature, seed=9), 0),
        running(replace(EDITED, temperature=temperature, logit_bias=(), min_tokens=0), 1, output=(12,)),
    ]
    for state in states:
        table.begin(state)
    items = [ScheduledRequest(state, 1, TREE) for state in states]
    logits = np.random.default_rng(3).standard_normal((18, VOCAB)).astype(np.float32) * 2
    tokens = sample(logits, gather(table, items), team=model.team)
    row = 0
    for state in states:
        for node in range(-1, len(TREE)):
            path = [TREE.token_ids[above] for above in TREE.path(node)]
            output = [*state.tokens[state.prompt_length :], *path]
            x = processed(logits[row], state.parameters.sampling, state.tokens[: state.prompt_length], output, (EOS,))
            position = state.prompt_length + len(output)
            assert tokens[row] == choose(x, state.parameters.sampling, 0, position)
            row += 1
