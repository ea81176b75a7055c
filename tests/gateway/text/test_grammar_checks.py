"""Each grammar is checked once, and one that is refused each time."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.core.request import Sampling
from gateway.text import grammar_checks
from gateway.text.grammar_checks import GrammarChecks
from gateway.text.prepared import Prepared
from slipstream.grammar.grammar import Grammar
from slipstream.rpc.errors import InvalidArgumentError


def request(text: str) -> Prepared:
    return Prepared(
        prompts=(array("I", [1]),), sampling=Sampling(grammar=Grammar(regex=text)), wires=(b"",), hashes=(None,),
        prompt_field="prompt", speculation=None, stop=(), tenant="", grammar_wire=text.encode(),
    )  # fmt: skip


class Recorder:
    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.done: list[str] = []

    def run(self, checks: GrammarChecks, text: str, count: int = 1) -> None:
        def check() -> None:
            self.done.append(text)
            if text in self.refused:
                raise InvalidArgumentError("no", field="regex")

        def told(prepared: Prepared, check: Callable[[], None]) -> None:
            assert prepared.grammar_wire == text.encode()
            check()

        assert checks.run(request(text), [check] * count, told).grammar_wire == text.encode()


def test_a_grammar_that_was_found_good_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_checks, "MOST_TAKEN", 2)
    checks, recorder = GrammarChecks(), Recorder()
    for text in "abab":
        recorder.run(checks, text)
    assert recorder.done == ["a", "b"]
    for text in "ca":
        recorder.run(checks, text)
    assert recorder.done == ["a", "b", "c", "a"], "what is remembered is bounded"
    assert checks.run(replace(request("x"), grammar_wire=b""), [], lambda *_: pytest.fail("nothing to check"))


def test_what_is_refused_or_made_of_parts_is_checked_each_time() -> None:
    checks, recorder = GrammarChecks(), Recorder("bad")
    for _ in range(2):
        with pytest.raises(InvalidArgumentError):
            recorder.run(checks, "bad")
        recorder.run(checks, "parts", count=2)
    assert recorder.done == ["bad", "parts", "parts"] * 2
