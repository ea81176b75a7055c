"""Grammars are compiled once, apart from the loop, and within their time."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import pytest

from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream.rpc.errors import InvalidArgumentError, ResourceExhaustedError
from support.panics import WORDS, panic
from verify_service.grammar import compiler as module
from verify_service.grammar.compiler import MAX_COMPILING, MAX_KEPT, GrammarCompiler, Result
from verify_service.grammar.matcher import CompiledGrammar


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> GrammarTokenizer:
    return load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(2,))


class Asker:
    def __init__(self, compiler: GrammarCompiler) -> None:
        self.compiler = compiler
        self.told: queue.Queue[Result] = queue.Queue()

    def ask(self, grammar: Grammar) -> Result:
        return self.compiler.compile(grammar, self.told.put) or self.told.get(timeout=30)


def test_a_grammar_is_compiled_once_whoever_asks(tokenizer: GrammarTokenizer) -> None:
    loads = []
    compiler = GrammarCompiler(lambda: loads.append(1) or tokenizer)
    asker = Asker(compiler)
    first = [compiler.compile(Grammar(regex="a+"), asker.told.put) for _ in range(3)]
    told = [asker.told.get(timeout=30) for answer in first if answer is None]
    assert told and all(isinstance(each, CompiledGrammar) for each in told)
    again = compiler.compile(Grammar(regex="a+", starts_after=(7,)), asker.told.put)
    assert isinstance(again, CompiledGrammar) and again is told[0]
    assert compiler.compiled == 1 and loads == [1]


def test_a_refusal_is_kept_too(tokenizer: GrammarTokenizer) -> None:
    asker = Asker(GrammarCompiler(lambda: tokenizer))
    bad = Grammar(json_schema='{"not": {}}')
    refused = asker.ask(bad)
    assert isinstance(refused, InvalidArgumentError) and refused.field == "grammar.json_schema"
    assert asker.compiler.compile(bad, asker.told.put) is refused


@pytest.mark.parametrize("schema", ['{"$ref": "#"}', '{"type": "string", "minLength": 5, "maxLength": 2}'])
def test_a_grammar_that_allows_nothing_is_refused(tokenizer: GrammarTokenizer, schema: str) -> None:
    assert isinstance(Asker(GrammarCompiler(lambda: tokenizer)).ask(Grammar(json_schema=schema)), InvalidArgumentError)


def test_what_was_not_used_for_long_is_forgotten(tokenizer: GrammarTokenizer) -> None:
    asker = Asker(GrammarCompiler(lambda: tokenizer))
    for number in range(MAX_KEPT + 1):
        asker.ask(Grammar(choice=(f"a{number}",)))
    assert asker.compiler.compile(Grammar(choice=(f"a{MAX_KEPT}",)), asker.told.put) is not None
    assert isinstance(asker.ask(Grammar(choice=("a0",))), CompiledGrammar)
    assert asker.compiler.compiled == MAX_KEPT + 2


def test_no_more_are_compiled_at_a_time_than_may_be(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, begun, compiled = threading.Event(), queue.Queue[None](), module._compiled

    def slow(grammar: Grammar, *of: Any, **how: Any) -> CompiledGrammar:
        begun.put(None)
        assert release.wait(30)
        return compiled(grammar, *of, **how)

    monkeypatch.setattr(module, "_compiled", slow)
    asker = Asker(GrammarCompiler(lambda: tokenizer))
    for number in range(MAX_COMPILING + 3):
        assert asker.compiler.compile(Grammar(regex=f"a{number}"), asker.told.put) is None
    for _ in range(MAX_COMPILING):
        begun.get(timeout=30)
    assert begun.empty() and asker.told.empty()
    release.set()
    for _ in range(MAX_COMPILING + 3):
        assert isinstance(asker.told.get(timeout=30), CompiledGrammar)
    assert asker.compiler.compiled == asker.compiler.ended == MAX_COMPILING + 3


def test_a_panic_refuses_its_grammar_by_name(tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "check_start", lambda grammar, start: panic())
    refused = Asker(GrammarCompiler(lambda: tokenizer)).ask(Grammar(regex="a+"))
    assert isinstance(refused, InvalidArgumentError) and refused.field == "grammar.regex"
    assert "cannot be compiled" in refused.message and WORDS in refused.message


def test_work_on_a_grammar_is_done_by_another_thread_though_it_is_known(tokenizer: GrammarTokenizer) -> None:
    asker = Asker(GrammarCompiler(lambda: tokenizer))
    known = asker.ask(Grammar(regex="ab"))
    threads = queue.Queue[tuple[int, Result]]()

    def work(result: Result) -> None:
        threads.put((threading.get_ident(), result))

    for regex in ("ab", "abc"):
        assert asker.compiler.compile(Grammar(regex=regex), work, at_length=True) is None
        thread, result = threads.get(timeout=30)
        assert thread != threading.get_ident() and isinstance(result, CompiledGrammar)
        assert (result is known) == (regex == "ab")


def test_a_listener_that_fails_leaves_no_other_unanswered(tokenizer: GrammarTokenizer) -> None:
    release = threading.Event()

    def load() -> GrammarTokenizer:
        assert release.wait(30)
        return tokenizer

    compiler = GrammarCompiler(load)
    asker = Asker(compiler)
    assert compiler.compile(Grammar(regex="ab"), lambda _: 1 // 0) is None
    assert compiler.compile(Grammar(regex="ab"), asker.told.put) is None
    release.set()
    assert isinstance(asker.told.get(timeout=30), CompiledGrammar)


def test_where_no_thread_is_to_be_had_the_request_is_told(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = Asker(GrammarCompiler(lambda: tokenizer))

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for number in range(MAX_COMPILING + 1):
            assert isinstance(asker.ask(Grammar(regex=f"a{number}")), ResourceExhaustedError)
    assert isinstance(asker.ask(Grammar(regex="a0")), CompiledGrammar)
