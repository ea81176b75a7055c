"""Refusals, dead ends, panics, hostile grammars: each ends its own request by name, and no other."""

from __future__ import annotations

import json
import queue
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipstream.generation_types import FinishReason
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from support.grammar_requests import CONFIG, GREEDY, PARAMS, as_grammar, plain, requests_of, run
from support.panics import WORDS, PanickingMatcher
from support.schemas import SCHEMAS
from support.verify_loop import Answer, RandomTrees, running_loop
from verify_service.core.request import RequestKey
from verify_service.grammar.compiler import GrammarCompiler, Result
from verify_service.grammar.matcher import CompiledGrammar, GrammarFailure
from verify_service.grammar.request_grammar import DEAD_END, AllowedTokens, RequestGrammar


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

    def dying(self: RequestGrammar, *room: Any, **options: Any) -> AllowedTokens:
        if self.length == 4 and self.has_begun and not self.allows(6):
            text = self._matcher._compiled.text
            if "a-f" in text:
                raise GrammarFailure(DEAD_END)
        return allowed(self, *room, **options)

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


@pytest.mark.parametrize("method", ["consume_tokens", "validate_tokens", "unsafe_compute_mask_ptr", "compute_ff_bytes"])
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
        # Behind tokens that strayed, masks may come before any token is checked.
        least = 0 if method == "validate_tokens" else 4
        panicking = PanickingMatcher(
            compiled.start, lambda name, followed, least=least: name == method and followed >= least
        )
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
