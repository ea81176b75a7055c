"""Steps on a device that runs late: rows take tokens nobody knows yet, and logits are asked for in time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import load_tokenizer
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.gpu.forward.masked_sampling import MaskedRows
from slipstream_kernels.token_tree import TokenTree
from support.host_model import HostModel, HostTicket
from support.plain_reference import PlainDecoder
from support.verify_loop import Target, admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import SamplingParams
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.grammar.compiler import _compiled
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.request_grammar import RequestGrammar
from verify_service.model_runner.gpu_runner import GpuModelRunner, GpuStepHandle
from verify_service.scheduler.kv_cache_manager import KVCacheManager

PROMPT = list(range(30, 47))
CONFIG = EngineConfig(num_pages=64, page_size=8, max_running=3, step_nodes=32, prefill_chunk=64)


class Bench:
    """An engine and requests that are driven by hand, as the loop would."""

    def __init__(self, model: Any) -> None:
        self.memory = KVCacheManager(CONFIG, 512)
        self.engine = GpuModelRunner(model, CONFIG, self.memory.page_table)

    def start(self, line: int, prompt: list[int], **sampling: Any) -> RequestState:
        params = SamplingParams(**({"temperature": 0.0, "seed": 0} | sampling))
        state = admitted(CONFIG, prompt, request_id=line, sampling=params)
        state.kv.req_index = line
        self.memory.begin(state)
        self.engine.begin(state)
        return state

    def launch(self, *states: RequestState, trees: dict[int, TokenTree] | None = None) -> GpuStepHandle:
        items = []
        for state in states:
            tree = (trees or {}).get(state.kv.req_index)
            item = ScheduledRequest(state, state.num_unscheduled_tokens, tree)
            assert self.memory.grow(state, item.base + (tree.depth if tree else 0))
            items.append(item)
        launched = self.engine.launch(items)
        for item in items:
            item.state.kv.num_computed_tokens, item.state.num_output_placeholders = (
                item.base,
                item.state.num_output_placeholders + 1,
            )
        return launched

    def decide(self, launched: GpuStepHandle) -> list[tuple[int, ...]]:
        self.decisions = self.engine.decide(launched)
        for decision in self.decisions:
            state = decision.item.state
            state.num_output_placeholders -= 1
            state.tokens.extend(decision.path.tokens)
            state.kv.num_computed_tokens = state.length - 1
        return [decision.path.tokens for decision in self.decisions]


def greedy(model: CausalLM, prompt: list[int], count: int) -> list[int]:
    decoder = PlainDecoder(model)
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(decoder.logits(tokens).argmax()))
    return tokens[len(prompt) :]


def test_three_steps_are_launched_before_the_first_is_decided(model: CausalLM) -> None:
    bench = Bench(HostModel(model, CONFIG))
    one, two = bench.start(0, PROMPT), bench.start(2, PROMPT[5:])
    steps = [bench.launch(one, two) for _ in range(3)]
    assert (one.length, one.num_unscheduled_tokens, len(one.tokens)) == (len(PROMPT) + 3, 1, len(PROMPT))
    first, second = (greedy(model, prompt, 5) for prompt in (PROMPT, PROMPT[5:]))
    for index, step in enumerate(steps):
        assert bench.decide(step) == [(first[index],), (second[index],)]
    assert bench.decide(bench.launch(two, one)) == [(second[3],), (first[3],)]
    tree = TokenTree((9, first[4]), (-1, -1))
    ((token, *_), tokens) = bench.decide(bench.launch(two, one, trees={0: tree}))
    assert token == second[4]
    assert tokens[0] == first[4]
    assert bench.decisions[1].path.nodes == (1,)


def test_a_line_may_be_given_away_behind_a_step_that_still_uses_it(model: CausalLM) -> None:
    bench = Bench(HostModel(model, CONFIG))
    old = bench.start(0, PROMPT, presence_penalty=1.0, logit_bias=((7, 50.0),))
    steps = [bench.launch(old), bench.launch(old)]
    bench.memory.end(old, keep=False)
    new = bench.start(0, PROMPT[3:])
    steps.append(bench.launch(new))
    assert bench.decide(steps[0]) == [(7,)]
    bench.decide(steps[1])
    assert bench.decide(steps[2]) == [(greedy(model, PROMPT[3:], 1)[0],)]


class Observed(HostModel):
    """Keeps the lines that it was asked to write, or to sample under masks, in the second way or in the pass."""

    def __init__(self, model: CausalLM, config: EngineConfig) -> None:
        super().__init__(model, config)
        self.lines: list[int] = []

    def set_line(self, line: int, *args: Any, **kwargs: Any) -> None:
        self.lines.append(line)
        super().set_line(line, *args, **kwargs)

    def sample_masked(self, ticket: HostTicket, wanted: MaskedRows) -> list[int]:
        self._note(ticket, wanted.rows)
        return super().sample_masked(ticket, wanted)

    def decide_again(self, ticket: HostTicket, rows: np.ndarray) -> None:
        super().decide_again(ticket, rows)
        ticket.wait()
        self._note(ticket, rows[rows >= 0])

    def _note(self, ticket: HostTicket, rows: np.ndarray) -> None:
        assert ticket.sampled is not None
        plan = ticket.sampled.plan
        self.lines += plan.lines[plan.logit_rows[rows]].tolist()


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_request_with_a_grammar_may_end_behind_its_step(model: CausalLM, tiny_model: Path, penalty: float) -> None:
    tokenizer = load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(2,))
    compiled = _compiled(Grammar(regex="[ab]{6}"), tokenizer, ForcedTexts(tokenizer))
    device = Observed(model, CONFIG)
    bench = Bench(device)
    ended, goes_on = bench.start(0, PROMPT, presence_penalty=penalty), bench.start(2, PROMPT)
    for state in (ended, goes_on):
        state.grammar = RequestGrammar(compiled)
    step = bench.launch(ended, goes_on)
    bench.memory.end(ended, keep=False)
    ended.finished, ended.kv.req_index = True, -1
    (_, (token,)) = bench.decide(step)
    assert tokenizer.tokens.decode_str([token]) in ("a", "b", "aa", "ab", "ba", "bb")
    assert device.lines == [0, 2, 2]


def test_logprobs_of_a_step_are_those_of_its_path(model: CausalLM) -> None:
    truth = greedy(model, PROMPT, 5)
    bench = Bench(HostModel(model, CONFIG))
    rich, poor, none = (bench.start(line, PROMPT, logprobs=top) for line, top in enumerate((3, 1, None)))
    bench.decide(bench.launch(none, poor, rich))
    tree = TokenTree((7, truth[1], 8, truth[2]), (-1, -1, 1, 1))
    step = bench.launch(poor, none, rich, trees={0: tree})
    bench.decide(step)
    plain, silent, drafted = bench.decisions
    assert bench.engine.logprobs(step, silent, 1) == ()
    (entry,) = bench.engine.logprobs(step, plain, 1)
    assert len(entry.top) == 1
    path = bench.engine.logprobs(step, drafted, 3)
    assert [each.chosen.token_id for each in path] == truth[1:4]
    assert [len(each.top) for each in path] == [3, 3, 3]
    assert path[0].chosen == entry.chosen == path[0].top[0] == entry.top[0]
    assert len(bench.engine.logprobs(step, drafted, 2)) == 2


def test_logprobs_come_though_the_next_step_is_launched(twins: Target) -> None:
    alone, ahead = Bench(twins(CONFIG)), Bench(twins(CONFIG))
    expected = []
    state = alone.start(0, PROMPT, logprobs=2)
    for _ in range(4):
        step = alone.launch(state)
        alone.decide(step)
        expected.extend(alone.engine.logprobs(step, alone.decisions[0], 1))
    found = []
    state = ahead.start(0, PROMPT, logprobs=2)
    steps = [ahead.launch(state)]
    for _ in range(4):
        steps.append(ahead.launch(state))
        step = steps.pop(0)
        ahead.decide(step)
        found.extend(ahead.engine.logprobs(step, ahead.decisions[0], 1))
    assert found == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [("page_size", 4), ("num_pages", 65), ("max_running", 4), ("step_nodes", 33), ("prefill_chunk", 65)],
)
def test_an_engine_larger_than_its_model_is_refused(model: CausalLM, field: str, value: int) -> None:
    config = replace(CONFIG, **{field: value})
    with pytest.raises(ValueError, match=f"{field} is {value}, the model"):
        GpuModelRunner(HostModel(model, CONFIG), config, KVCacheManager(config, 512).page_table)  # type: ignore[arg-type]  # stand-in


def test_a_context_longer_than_its_model_is_refused(model: CausalLM) -> None:
    with pytest.raises(ValueError, match="max_context is 512, the model is prepared for 100"):
        GpuModelRunner(
            HostModel(model, replace(CONFIG, max_context=100)), CONFIG, KVCacheManager(CONFIG, 512).page_table
        )
