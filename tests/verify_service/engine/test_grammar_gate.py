"""Requests pass with their grammars, or wait for them; output that came before is followed by another thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream.rpc.errors import InternalError, InvalidArgumentError
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import SamplingParams
from verify_service.core.request_state import RequestState
from verify_service.engine import grammar_gate as module
from verify_service.engine.command_queue import GrammarReady
from verify_service.engine.grammar_gate import GrammarGate
from verify_service.grammar.compiler import GrammarCompiler
from verify_service.grammar.request_grammar import RequestGrammar

AMBIGUOUS = Grammar(lark='start: s\ns: "a" | "b" | s s')


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> GrammarTokenizer:
    return load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(2,))


class Desk:
    """A gate whose answers wait, each with the thread that gave it."""

    def __init__(self, tokenizer: GrammarTokenizer) -> None:
        self.told: queue.Queue[tuple[GrammarReady, int]] = queue.Queue()
        tell = lambda ready: self.told.put((ready, threading.get_ident()))  # noqa: E731 - as short as it is
        self.gate = GrammarGate(GrammarCompiler(lambda: tokenizer), tell, most_waiting=4)

    def ask(self, grammar: Grammar, output: Sequence[int] = ()) -> tuple[bool, RequestState]:
        params = SamplingParams(grammar=grammar, max_tokens=400)
        state = admitted(EngineConfig(num_pages=64), (9, 8), sampling=params, output=output)
        return self.gate.pass_through(state), state

    def answer(self, grammar: Grammar, output: Sequence[int] = ()) -> object:
        assert not self.ask(grammar, output)[0]
        return self.told.get(timeout=30)[0].result


@pytest.fixture
def desk(tokenizer: GrammarTokenizer) -> Desk:
    desk = Desk(tokenizer)
    assert isinstance(desk.answer(AMBIGUOUS), RequestGrammar)
    return desk


def test_output_is_followed_by_another_thread_though_the_grammar_is_known(
    desk: Desk, tokenizer: GrammarTokenizer
) -> None:
    assert desk.ask(AMBIGUOUS)[0]
    output = tokenizer.tokens.tokenize_str("ab" * 20)
    passed, state = desk.ask(AMBIGUOUS, output)
    ready, thread = desk.told.get(timeout=30)
    assert not passed and state.grammar is None and thread != threading.get_ident()
    assert desk.gate.open(ready)
    assert state.grammar is not None and state.grammar.length == len(output)


def test_output_that_takes_too_long_to_follow_is_refused(
    desk: Desk, tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLLOW_SECONDS", 0.02)
    error = desk.answer(AMBIGUOUS, tokenizer.tokens.tokenize_str("ab" * 150))
    assert isinstance(error, InvalidArgumentError) and error.field == "output_token_ids" and "0.02 s" in error.message


def test_output_that_is_not_allowed_is_refused(desk: Desk, tokenizer: GrammarTokenizer) -> None:
    error = desk.answer(AMBIGUOUS, tokenizer.tokens.tokenize_str("abc"))
    assert isinstance(error, InvalidArgumentError) and error.field == "output_token_ids"


def test_whatever_goes_wrong_the_request_is_answered(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OverflowError("too far back")

    monkeypatch.setattr(RequestGrammar, "follow_output", fails)
    assert isinstance(desk.answer(AMBIGUOUS, (9,)), InternalError)
