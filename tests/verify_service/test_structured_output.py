"""Structured answers are those of plain constrained decoding, whatever drafts them."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from slipstream.generation_types import SpeculationOptions
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.grammar_requests import CONFIG, PARAMS, TOKENS, Plain, as_grammar, plain, requests_of, run
from support.host_model import HostModel
from support.plain_grammar import PlainGrammar
from support.plain_reference import plain_generate
from support.request_mix import drafter
from support.schemas import SCHEMAS
from support.verify_loop import RandomTrees, Target, running_loop
from verify_service.core.request import RequestKey
from verify_service.grammar.compiler import GrammarCompiler
from verify_service.grammar.request_grammar import AllowedTokens, RequestGrammar


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
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    kind: str,
) -> None:
    if engine == "twins":
        # There a pass is over as it was launched; as on a device all masks are to be there before.
        monkeypatch.setattr("slipstream_kernels.models.gpu.graph.pass_handle.PassHandle.done", lambda _: False)
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
            assert bool(accepted) == (name != "none")
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

    def counted(grammar: RequestGrammar, *room: Any, **options: Any) -> AllowedTokens:
        threads.append(threading.current_thread().name)
        return allowed(grammar, *room, **options)

    monkeypatch.setattr(RequestGrammar, "allowed", counted)
    requests = requests_of(PARAMS[kind], [as_grammar(schema) for schema in SCHEMAS[:8]])
    expected = [plain(model, tokenizer, one) for one in requests]
    for name in ("none", "random", "oracle"):
        trees = drafter(name, requests, [(tokens, (), reason) for tokens, reason in expected])
        with running_loop(model, CONFIG, trees, grammars=compiler) as runner:
            answers = runner.run(requests, 8)
        assert [(answer.token_ids, answer.finish_reason) for answer in answers] == expected, name
    assert any(name.startswith("masks") for name in threads) == beside


@pytest.mark.parametrize("engine", ["cpu", "device"])
def test_preempted_and_resumed_streams_go_on_where_they_were(
    request: pytest.FixtureRequest, model: CausalLM, tokenizer: GrammarTokenizer, compiler: GrammarCompiler, engine: str
) -> None:
    target = engine_of(engine, model, request)
    requests = requests_of(PARAMS["penalties"], [as_grammar(schema) for schema in SCHEMAS[-9:]])
    expected = [plain(model, tokenizer, one) for one in requests]
    longest = max(len(one.prompt_token_ids) for one in requests) + TOKENS
    short = replace(CONFIG, num_pages=-(-longest // 8) + 3, prefill_chunk=7)
    answers, state = run(target, compiler, requests, short, RandomTrees(512, seed=4))
    assert state.preemptions > 0
    assert [answer.token_ids for answer in answers] == [tokens for tokens, _ in expected]
    for cut in (1, 7):
        resumed = [
            replace(one, output_token_ids=tokens[: min(cut, len(tokens) - 1)])
            for one, (tokens, _) in zip(requests, expected, strict=True)
        ]
        answers, _ = run(target, compiler, resumed)
        for one, answer, (tokens, reason) in zip(resumed, answers, expected, strict=True):
            assert one.output_token_ids + answer.token_ids == tokens
            assert answer.finish_reason is reason


@pytest.mark.parametrize("name", ["none", "oracle"])
@pytest.mark.parametrize("kind", ["seeded", "top_p"])
@pytest.mark.parametrize("engine", ["cpu", "device"])
def test_a_grammar_may_start_within_a_drafted_path(
    request: pytest.FixtureRequest,
    model: CausalLM,
    tokenizer: GrammarTokenizer,
    compiler: GrammarCompiler,
    engine: str,
    kind: str,
    name: str,
) -> None:
    free = [replace(one.sampling, grammar=None) for one in requests_of(PARAMS[kind], [as_grammar(True)] * 4)]
    first = [plain_generate(model, [9, 8, 7], params)[0] for params in free]
    starts = tuple({tokens[5] for tokens in first})
    grammar = replace(as_grammar(SCHEMAS[25]), starts_after=starts)
    requests = [
        replace(one, prompt_token_ids=(9, 8, 7), choice_index=0, sampling=replace(one.sampling, logprobs=1))
        for one in requests_of(PARAMS[kind], [grammar] * 4)
    ]
    expected = [plain(model, tokenizer, one) for one in requests]
    trees = drafter(name, requests, [(tokens, (), reason) for tokens, reason in expected])
    with running_loop(engine_of(engine, model, request), CONFIG, trees, grammars=compiler) as runner:
        answers = runner.run(requests)
    for answer, (tokens, reason), before in zip(answers, expected, first, strict=True):
        assert (answer.token_ids, answer.finish_reason) == (tokens, reason)
        at = next(index for index, token in enumerate(tokens) if token in starts)
        assert tokens[: at + 1] == tuple(before[: at + 1])
        assert [entry.chosen.token_id for entry in answer.logprobs] == list(tokens)


@pytest.mark.parametrize("engine", ["cpu", "device"])
def test_free_neighbours_are_left_alone(
    request: pytest.FixtureRequest, model: CausalLM, tokenizer: GrammarTokenizer, compiler: GrammarCompiler, engine: str
) -> None:
    held = requests_of(PARAMS["top_p"], [as_grammar(schema) for schema in SCHEMAS[20:24]])
    free = [
        replace(one, key=RequestKey(1, index), sampling=replace(one.sampling, grammar=None))
        for index, one in enumerate(held)
    ]
    with running_loop(engine_of(engine, model, request), CONFIG, RandomTrees(512, seed=1), grammars=compiler) as runner:
        answers = runner.run([*held, *free])
    for answer, one in zip(answers[:4], held, strict=True):
        assert answer.token_ids == plain(model, tokenizer, one)[0]
    for answer, one in zip(answers[4:], free, strict=True):
        tokens, _, _ = plain_generate(model, list(one.prompt_token_ids), one.sampling, choice=one.choice_index)
        assert answer.token_ids == tuple(tokens)


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
