"""Structured answers are those of plain constrained decoding, whatever drafts them."""

from __future__ import annotations

import json
import os
import queue
import random
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from slipstream.generation_types import FinishReason, SpeculationOptions
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.host_model import HostModel
from support.panics import WORDS, PanickingMatcher
from support.plain_grammar import PlainGrammar
from support.plain_reference import plain_generate
from support.request_mix import drafter
from support.schemas import SCHEMAS
from support.verify_loop import Answer, RandomTrees, ScriptedTrees, Target, running_loop
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import GenerationRequest, RequestKey, SamplingParams
from verify_service.engine.loop_stats import LoopState
from verify_service.grammar.compiler import GrammarCompiler, Result
from verify_service.grammar.matcher import CompiledGrammar, GrammarFailure
from verify_service.grammar.request_grammar import DEAD_END, AllowedTokens, RequestGrammar

TOKENS = 40
CONFIG = EngineConfig(num_pages=256, page_size=8, max_running=8, adaptive=False)
Plain = tuple[tuple[int, ...], FinishReason]
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS)
PARAMS = {
    "greedy": GREEDY,
    "seeded": replace(GREEDY, temperature=1.0),
    "top_p": replace(GREEDY, temperature=1.0, top_p=0.9),
    "penalties": replace(GREEDY, temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.3, top_k=40),
    "edited": replace(GREEDY, logit_bias=((20, 3.0), (70, 5.0)), min_tokens=12, stop_token_ids=(3, 60)),
    "until stopped": replace(GREEDY, temperature=0.7, min_p=0.05, ignore_eos=True),
}


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> GrammarTokenizer:
    return load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(2,))


@pytest.fixture(scope="module")
def compiler(tokenizer: GrammarTokenizer) -> GrammarCompiler:
    return GrammarCompiler(lambda: tokenizer)


def requests_of(params: SamplingParams, grammars: list[Grammar], tokens: int = TOKENS) -> list[GenerationRequest]:
    pick = random.Random(3)
    return [
        GenerationRequest(
            RequestKey(0, index),
            tuple(pick.randrange(6, 512) for _ in range(pick.randint(1, 30))),
            arrival=0.0,
            sampling=replace(params, seed=50 + index, grammar=grammar, max_tokens=tokens),
            choice_index=index % 2,
        )
        for index, grammar in enumerate(grammars)
    ]


def plain(model: CausalLM, tokenizer: GrammarTokenizer, request: GenerationRequest) -> Plain:
    legal = PlainGrammar(request.sampling, tokenizer).legal
    tokens, _, reason = plain_generate(
        model, list(request.prompt_token_ids), request.sampling, choice=request.choice_index, legal=legal
    )
    return tuple(tokens), reason


def as_grammar(schema: Any) -> Grammar:
    return Grammar(json_schema=json.dumps(schema), coerce_one_of=True)


def engine_of(name: str, model: CausalLM, request: pytest.FixtureRequest) -> Target:
    """The CPU's engine; that of devices over the CPU's model, and over the twins of a GPU's kernels."""
    if name == "twins":
        return request.getfixturevalue("twins")
    return model if name == "cpu" else partial(HostModel, model)


ENGINES = [
    *(("cpu", name) for name in PARAMS),
    *(("device", name) for name in ("seeded", "top_p", "penalties", "edited")),
    ("twins", "penalties"),
]


@pytest.mark.parametrize(("engine", "kind"), ENGINES)
def test_answers_are_those_of_plain_constrained_decoding(
    request: pytest.FixtureRequest,
    model: CausalLM,
    tokenizer: GrammarTokenizer,
    compiler: GrammarCompiler,
    engine: str,
    kind: str,
) -> None:
    turn = list(PARAMS).index(kind)
    chosen = SCHEMAS[turn % 4 :: 4 if engine == "cpu" else 12]
    tokens = 12 if engine == "twins" else TOKENS
    requests = requests_of(PARAMS[kind], [as_grammar(schema) for schema in chosen], tokens)
    target = engine_of(engine, model, request)
    expected = [plain(model, tokenizer, one) for one in requests]
    for name in ("none", "grammar", "random", "oracle"):
        trees = drafter(name, requests, [(tokens, (), reason) for tokens, reason in expected])
        options = SpeculationOptions(enabled=name != "none")
        with running_loop(target, CONFIG, trees, grammars=compiler) as runner:
            answers = runner.run([replace(one, speculation=options) for one in requests], 8)
            state = runner.loop.state()
            accepted, seconds = state.accepted_tokens, state.grammar_seconds
            assert seconds is not None and seconds.checks > 0 and seconds.masks > 0
            assert (seconds.drafts > 0) == (name != "none")
            # A device ends a path where its token was illegal, as nearly all tokens of a random model are.
            assert not accepted if name == "none" else accepted or engine != "cpu"
        for answer, (tokens, reason), one in zip(answers, expected, requests, strict=True):
            assert answer.last.error is None
            assert (answer.token_ids, answer.finish_reason) == (tokens, reason), (name, one.sampling.grammar)
    texts = [tokenizer.tokens.decode_str(list(tokens[:-1])) if tokens[-1] == 2 else None for tokens, _ in expected]
    assert any(text is not None for text in texts)
    for text, schema in zip(texts, chosen, strict=True):
        if text is not None:
            jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize("kind", ["greedy", "top_p"])
@pytest.mark.parametrize("beside", [True, False])
def test_masks_of_another_thread_change_no_token(
    model: CausalLM,
    tokenizer: GrammarTokenizer,
    compiler: GrammarCompiler,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    beside: bool,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(model.team.threads + beside))
    threads: list[str] = []
    allowed = RequestGrammar.allowed

    def counted(grammar: RequestGrammar) -> AllowedTokens:
        threads.append(threading.current_thread().name)
        return allowed(grammar)

    monkeypatch.setattr(RequestGrammar, "allowed", counted)
    requests = requests_of(PARAMS[kind], [as_grammar(schema) for schema in SCHEMAS[:8]])
    expected = [plain(model, tokenizer, one) for one in requests]
    for name in ("none", "random", "oracle"):
        trees = drafter(name, requests, [(tokens, (), reason) for tokens, reason in expected])
        with running_loop(model, CONFIG, trees, grammars=compiler) as runner:
            answers = runner.run(requests, 8)
        assert [(answer.token_ids, answer.finish_reason) for answer in answers] == expected, name
    assert any(name.startswith("masks") for name in threads) == beside


def run(
    model: CausalLM,
    compiler: GrammarCompiler,
    requests: list[GenerationRequest],
    config: EngineConfig = CONFIG,
    trees: ScriptedTrees | None = None,
    concurrency: int = 0,
) -> tuple[list[Answer], LoopState]:
    with running_loop(model, config, trees, grammars=compiler) as runner:
        answers = runner.run(requests, concurrency)
        return answers, runner.loop.state()


def test_preempted_and_resumed_streams_go_on_where_they_were(
    model: CausalLM, tokenizer: GrammarTokenizer, compiler: GrammarCompiler
) -> None:
    requests = requests_of(PARAMS["penalties"], [as_grammar(schema) for schema in SCHEMAS[-9:]])
    expected = [plain(model, tokenizer, one) for one in requests]
    longest = max(len(one.prompt_token_ids) for one in requests) + TOKENS
    short = replace(CONFIG, num_pages=-(-longest // 8) + 3, prefill_chunk=7)
    answers, state = run(model, compiler, requests, short, RandomTrees(512, seed=4))
    assert state.preemptions > 0
    assert [answer.token_ids for answer in answers] == [tokens for tokens, _ in expected]
    for cut in (1, 7):
        resumed = [
            replace(one, output_token_ids=tokens[: min(cut, len(tokens) - 1)])
            for one, (tokens, _) in zip(requests, expected, strict=True)
        ]
        answers, _ = run(model, compiler, resumed)
        for one, answer, (tokens, reason) in zip(resumed, answers, expected, strict=True):
            assert one.output_token_ids + answer.token_ids == tokens
            assert answer.finish_reason is reason


@pytest.mark.parametrize("name", ["none", "oracle"])
def test_a_grammar_may_start_within_a_drafted_path(
    model: CausalLM, tokenizer: GrammarTokenizer, compiler: GrammarCompiler, name: str
) -> None:
    free = [replace(one.sampling, grammar=None) for one in requests_of(PARAMS["seeded"], [as_grammar(True)] * 4)]
    first = [plain_generate(model, [9, 8, 7], params)[0] for params in free]
    starts = tuple({tokens[5] for tokens in first})
    grammar = replace(as_grammar(SCHEMAS[25]), starts_after=starts)
    requests = [
        replace(one, prompt_token_ids=(9, 8, 7), choice_index=0, sampling=replace(one.sampling, logprobs=1))
        for one in requests_of(PARAMS["seeded"], [grammar] * 4)
    ]
    expected = [plain(model, tokenizer, one) for one in requests]
    trees = drafter(name, requests, [(tokens, (), reason) for tokens, reason in expected])
    answers, _ = run(model, compiler, requests, trees=trees)
    for answer, (tokens, reason), before in zip(answers, expected, first, strict=True):
        assert (answer.token_ids, answer.finish_reason) == (tokens, reason)
        at = next(index for index, token in enumerate(tokens) if token in starts)
        assert tokens[: at + 1] == tuple(before[: at + 1])
        assert [entry.chosen.token_id for entry in answer.logprobs] == list(tokens)


def test_free_neighbours_are_left_alone(
    model: CausalLM, tokenizer: GrammarTokenizer, compiler: GrammarCompiler
) -> None:
    held = requests_of(PARAMS["top_p"], [as_grammar(schema) for schema in SCHEMAS[20:24]])
    free = [
        replace(one, key=RequestKey(1, index), sampling=replace(one.sampling, grammar=None))
        for index, one in enumerate(held)
    ]
    answers, _ = run(model, compiler, [*held, *free], trees=RandomTrees(512, seed=1))
    for answer, one in zip(answers[:4], held, strict=True):
        assert answer.token_ids == plain(model, tokenizer, one)[0]
    for answer, one in zip(answers[4:], free, strict=True):
        tokens, _, _ = plain_generate(model, list(one.prompt_token_ids), one.sampling, choice=one.choice_index)
        assert answer.token_ids == tuple(tokens)


def only(model: CausalLM, compiler: GrammarCompiler | None, grammar: Grammar, **params: Any) -> Answer:
    (one,) = requests_of(replace(GREEDY, **params), [grammar])
    with running_loop(model, CONFIG, grammars=compiler) as runner:
        (answer,) = runner.run([replace(one, sampling=replace(one.sampling, grammar=grammar))])
    return answer


@pytest.mark.parametrize(
    ("grammar", "params", "field"),
    [
        (Grammar(json_schema='{"not": {}}'), {}, "grammar.json_schema"),
        (Grammar(), {}, "grammar"),
        (Grammar(regex="a", starts_after=(512,)), {}, "grammar.starts_after"),
        (Grammar(regex="a", starts_after=(7,)), {"ignore_eos": True}, "ignore_eos"),
    ],
)
def test_a_grammar_that_cannot_be_enforced_is_refused(
    model: CausalLM, compiler: GrammarCompiler, grammar: Grammar, params: dict[str, Any], field: str
) -> None:
    for _ in range(2):
        answer = only(model, compiler, grammar, **params)
        assert isinstance(answer.last.error, InvalidArgumentError) and answer.last.error.field == field
        assert len(answer.outputs) == 1


def test_without_a_tokenizer_grammars_are_refused_by_name(model: CausalLM, tmp_path: Path) -> None:
    nowhere = GrammarCompiler(lambda: load_tokenizer(tmp_path, vocab_size=512, eos_token_ids=(2,)))
    for compiler in (None, nowhere):
        assert isinstance(only(model, compiler, Grammar(regex="a")).last.error, FailedPreconditionError)


def test_output_that_the_grammar_does_not_allow_cannot_be_gone_on_with(
    model: CausalLM, compiler: GrammarCompiler
) -> None:
    (one,) = requests_of(GREEDY, [Grammar(regex="ab")])
    (answer,), _ = run(model, compiler, [replace(one, output_token_ids=(300, 301))])
    assert isinstance(answer.last.error, InvalidArgumentError) and answer.last.error.field == "output_token_ids"


def test_a_dead_end_ends_its_request_by_name_and_no_other(
    model: CausalLM, tokenizer: GrammarTokenizer, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, alive = requests_of(GREEDY, [Grammar(regex="[a-f]{20}"), as_grammar(SCHEMAS[23])])
    allowed = RequestGrammar.allowed

    def dying(self: RequestGrammar) -> AllowedTokens:
        if self.length == 4 and self.has_begun and not self.allows(6):
            text = self._matcher._compiled.text
            if "a-f" in text:
                raise GrammarFailure(DEAD_END)
        return allowed(self)

    monkeypatch.setattr(RequestGrammar, "allowed", dying)
    answers, _ = run(model, compiler, [dead, alive])
    assert answers[1].token_ids == plain(model, tokenizer, alive)[0]
    error = answers[0].last.error
    assert isinstance(error, InvalidArgumentError) and DEAD_END in error.message and error.field == "grammar"
    assert len(answers[0].token_ids) == 4


def test_a_request_may_end_while_its_grammar_is_compiled(tokenizer: GrammarTokenizer, model: CausalLM) -> None:
    release = threading.Event()

    def load() -> GrammarTokenizer:
        assert release.wait(30)
        return tokenizer

    held, free = requests_of(GREEDY, [Grammar(regex="ab"), Grammar(regex="ab")])
    free = replace(free, sampling=replace(free.sampling, grammar=None))
    with running_loop(model, CONFIG, grammars=GrammarCompiler(load)) as runner:
        runner.loop.submit(held)
        runner.run([free])
        assert not runner.finished(held.key) and not runner.loop.wait_idle(0.01)
        runner.loop.cancel(held.key)
        runner.wait_for(lambda: runner.finished(held.key))
        assert runner.answers[held.key].finish_reason is FinishReason.CANCELLED
        again = replace(held, key=RequestKey(0, 7))
        runner.loop.submit(again)
        runner.loop.drain()
        release.set()
        runner.wait_for(lambda: runner.finished(again.key))
        assert runner.answers[again.key].last.error is None
        assert tokenizer.tokens.decode_str(list(runner.answers[again.key].token_ids[:-1])) == "ab"


@pytest.mark.parametrize("method", ["consume_tokens", "validate_tokens", "compute_bitmask", "compute_ff_bytes"])
def test_a_panic_costs_its_own_request_at_most(model: CausalLM, tokenizer: GrammarTokenizer, method: str) -> None:
    """Of the grammar that panics the first request fails by name, or goes on with another matcher."""
    held, free = requests_of(GREEDY, [Grammar(regex="[a-f]{20}"), as_grammar(SCHEMAS[23])])
    expected = [plain(model, tokenizer, one) for one in (held, free)]
    for renewable in (True, False):
        grammars = GrammarCompiler(lambda: tokenizer)
        told = queue.Queue[Result]()
        assert grammars.compile(held.sampling.grammar or Grammar(), told.put) is None
        compiled = told.get(timeout=30)
        assert isinstance(compiled, CompiledGrammar)
        panicking = PanickingMatcher(compiled.start, lambda name, followed: name == method and followed >= 4)
        compiled.start, compiled.renewable = panicking, renewable  # type: ignore[assignment]
        answers, _ = run(model, grammars, [held, free])
        assert (answers[1].token_ids, answers[1].finish_reason) == expected[1]
        error = answers[0].last.error
        if renewable or method == "compute_ff_bytes":
            assert (answers[0].token_ids, answers[0].finish_reason) == expected[0]
        else:
            assert isinstance(error, InvalidArgumentError) and error.field == "grammar" and WORDS in error.message
            assert answers[0].token_ids == expected[0][0][: len(answers[0].token_ids)]


def chain_of_rules(length: int) -> Grammar:
    return Grammar(lark="start: r0\n" + "\n".join(f'r{n}: r{n + 1} "x"' for n in range(length)) + f'\nr{length}: "z"')


HOSTILE = [
    Grammar(regex="(.*a.{7}b)|(.*c.{6}d)|(.*e.{8}f)"),
    Grammar(regex="(x{1,1000}){1,1000}"),
    Grammar(regex="(a|aa|aaa)*b"),
    Grammar(regex="a{20000}"),
    Grammar(choice=tuple(f"{'x' * 15}{number}" for number in range(10_000))),
    Grammar(json_schema=json.dumps({"enum": [f"value-{number}" for number in range(10_000)]})),
    Grammar(json_schema='{"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"}'),
    Grammar(json_schema='{"type":"array","items":{"$ref":"#"}}'),
    Grammar(json_schema='{"items":' * 120 + "{}" + "}" * 120),
    Grammar(json_schema=" " * (1 << 18) + "{}"),
    chain_of_rules(6000),
    Grammar(lark='start: start start | "a"'),
]


def test_hostile_grammars_cost_their_own_request(
    model: CausalLM, tokenizer: GrammarTokenizer, compiler: GrammarCompiler
) -> None:
    held = requests_of(replace(GREEDY, max_tokens=12), HOSTILE, 12)
    fair = [replace(one, key=RequestKey(1, 0)) for one in requests_of(PARAMS["seeded"], [as_grammar(SCHEMAS[22])])]
    config = replace(CONFIG, max_running=16)
    answers, _ = run(model, compiler, [*held, *fair], config, RandomTrees(512, seed=6))
    assert answers[-1].token_ids == plain(model, tokenizer, fair[0])[0]
    for answer in answers[:-1]:
        error = answer.last.error
        assert error is None or (isinstance(error, InvalidArgumentError) and error.field.startswith("grammar"))
    assert sum(answer.last.error is not None for answer in answers) >= 2


@pytest.mark.parametrize("kind", ["greedy", "top_p"])
def test_drafts_that_trip_a_limit_change_nothing(
    model: CausalLM, tokenizer: GrammarTokenizer, compiler: GrammarCompiler, kind: str
) -> None:
    expected: list[Plain] = []
    for name in ("none", "grammar", "random"):
        fresh = GrammarCompiler(lambda: tokenizer)
        requests = requests_of(PARAMS[kind], [Grammar(regex="a{200000}"), Grammar(regex="b|a{200000}")] * 2)
        asked = [replace(one, speculation=SpeculationOptions(enabled=name != "none")) for one in requests]
        answers, _ = run(model, fresh, asked, trees=RandomTrees(512, seed=2) if name == "random" else None)
        assert all(answer.last.error is None for answer in answers), name
        given = [(answer.token_ids, answer.finish_reason) for answer in answers]
        expected = expected or given
        assert given == expected, name


@pytest.mark.gpu
def test_a_gpu_answers_alike_whatever_is_drafted(
    tiny_model: Path, tokenizer: GrammarTokenizer, compiler: GrammarCompiler
) -> None:
    from benchmarks.local_engine.measured_model import limits_of
    from slipstream_kernels.models.gpu.gpu_model import GpuModel

    target = GpuModel.load(tiny_model, limits_of(CONFIG, 4), device="cuda", progress=False)
    for params in PARAMS.values():
        requests = requests_of(params, [as_grammar(schema) for schema in SCHEMAS[::3]])
        expected: list[Plain] = []
        for name in ("none", "grammar", "random", "oracle"):
            trees = drafter(name, requests, [(tokens, (), reason) for tokens, reason in expected])
            asked = [replace(one, speculation=SpeculationOptions(enabled=name != "none")) for one in requests]
            with running_loop(lambda config: target, CONFIG, trees, grammars=compiler) as runner:
                answers = runner.run(asked, 1 if name == "none" else 8)
            assert all(answer.last.error is None for answer in answers)
            given = [(answer.token_ids, answer.finish_reason) for answer in answers]
            expected = expected or given
            assert given == expected, name
        for (tokens, _), one in zip(expected, requests, strict=True):
            legal = PlainGrammar(one.sampling, tokenizer).legal
            for index, token in enumerate(tokens):
                mask = legal(list(tokens[:index]))
                assert mask is not None and mask[token]
