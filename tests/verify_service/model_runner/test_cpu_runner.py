"""One pass: rows of a tree compute what plain decoding would, and accepted nodes end up in pages."""

from __future__ import annotations

import pytest

from slipstream.generation_types import PositionLogprobs
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.token_tree import TokenTree
from support.plain_reference import PlainDecoder
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import SamplingParams
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.model_runner.cpu_runner import CpuModelRunner
from verify_service.scheduler.kv_cache_manager import KVCacheManager

PROMPT = list(range(30, 47))
GREEDY = SamplingParams(temperature=0.0, seed=0, logprobs=3)


class Bench:
    """An engine with one request on line 0, its prompt computed."""

    def __init__(self, model: CausalLM, page_size: int) -> None:
        config = EngineConfig(num_pages=128, page_size=page_size)
        self.memory = KVCacheManager(config, model.config.max_context)
        self.engine = CpuModelRunner(model, config, self.memory.page_table)
        self.state: RequestState = admitted(config, PROMPT, sampling=GREEDY)
        self.state.kv.req_index = 0
        self.memory.begin(self.state)
        self.engine.begin(self.state)

    def step(self, tree: TokenTree | None = None) -> tuple[int, ...]:
        state = self.state
        item = ScheduledRequest(state, state.num_unscheduled_tokens, tree)
        assert self.memory.grow(state, len(state.tokens) + (tree.depth if tree is not None else 0))
        self.launched = self.engine.launch([item])
        (decision,) = self.engine.decide(self.launched)
        state.tokens.extend(decision.path.tokens)
        state.kv.num_computed_tokens = len(state.tokens) - 1
        self.engine.commit(state, decision.path.tokens)
        self.decision = decision
        return decision.path.tokens

    def logprobs(self, count: int) -> tuple[PositionLogprobs, ...]:
        return self.engine.logprobs(self.launched, self.decision, count)


def greedy(model: CausalLM, count: int) -> list[int]:
    decoder = PlainDecoder(model)
    tokens = list(PROMPT)
    for _ in range(count):
        tokens.append(int(decoder.logits(tokens).argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("page_size", [1, 8, 64])
def test_a_branching_tree_is_walked_and_its_path_kept(model: CausalLM, page_size: int) -> None:
    truth = greedy(model, 12)
    bench = Bench(model, page_size)
    assert bench.step() == (truth[0],)
    wrong = (truth[1] + 1) % 512
    tree = TokenTree((wrong, truth[1], truth[2], wrong, truth[2], truth[3]), (-1, -1, 0, 1, 1, 4))
    assert bench.step(tree) == tuple(truth[1:5])
    assert bench.decision.path.nodes == (1, 4, 5)
    assert bench.step(TokenTree.chain(truth[5:8])) == tuple(truth[5:9])
    assert bench.step() == (truth[9],)


def test_logprobs_are_of_the_path_alone(model: CausalLM) -> None:
    truth = greedy(model, 4)
    plain, drafted = Bench(model, 8), Bench(model, 8)
    one_by_one = []
    for _ in range(4):
        plain.step()
        one_by_one.extend(plain.logprobs(1))
    drafted.step()
    together = list(drafted.logprobs(1))
    drafted.step(TokenTree((7, truth[1], 8, truth[2]), (-1, -1, 1, 1)))
    together.extend(drafted.logprobs(3))
    assert together == one_by_one
    assert [entry.chosen.token_id for entry in together] == truth
    assert len(drafted.logprobs(1)) == 1
    for entry in together:
        assert len(entry.top) == 3
        assert entry.top[0] == entry.chosen


def test_a_prompt_chunk_decides_nothing(model: CausalLM) -> None:
    bench = Bench(model, 8)
    assert bench.engine.decide(bench.engine.launch([ScheduledRequest(bench.state, 5)])) == []
    bench.state.kv.num_computed_tokens = 5
    assert bench.step() == (greedy(model, 1)[0],)


def test_pass_costs_are_measured_within_memory_and_context(model: CausalLM) -> None:
    assert [each[:2] for each in Bench(model, 8).engine.pass_costs()] == [
        (1, rows) for rows in (1, 2, 4, 6, 8, 12, 16, 32, 64)
    ]
    config = EngineConfig(num_pages=5, page_size=2)
    small = CpuModelRunner(model, config, KVCacheManager(config, 512).page_table)
    assert [rows for _, rows, _ in small.pass_costs()] == [1, 2, 4, 6, 8]
