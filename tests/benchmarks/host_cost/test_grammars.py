"""What grammars cost on a made-up device: the real loop says what is known before, strays or not, drafted or not."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from benchmarks.host_cost import grammars
from benchmarks.host_cost.answering_device import HeldJob, demo_tokenizer
from benchmarks.host_cost.grammars import DRAFTED, PLAIN
from slipstream.grammar.grammar import Grammar
from verify_service.grammar.compiler import GrammarCompiler, _compiled
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.request_grammar import RequestGrammar


def random_answers(jobs: Sequence[HeldJob], grammars: GrammarCompiler) -> list[list[int]]:
    """Legal tokens at random, in place of a model's."""
    pick, tokenizer, found = Random(1), demo_tokenizer(), []
    for job in jobs:
        grammar = RequestGrammar(_compiled(Grammar(json_schema=job.schema), tokenizer, ForcedTexts(tokenizer)))
        answer: list[int] = []
        while len(answer) < job.max_tokens:
            words = grammar.allowed().words
            token = pick.choice(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())
            answer.append(token)
            if grammar.ends_output(token):
                break
            grammar.step(token)
        found.append(answer)
    return found


def test_costs_of_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "costs.json"
    options = ["--requests", "3", "--rounds", "1", "--threads", "2", "--pass-factor", "0.2", "--output", str(output)]
    monkeypatch.setattr(sys, "argv", ["grammars", *options])
    monkeypatch.setattr(grammars, "answers_to", random_answers)
    grammars.main()
    costs = json.loads(output.read_text())["costs"]
    assert [(each["way"], each["law"]) for each in costs] == [
        (way, law) for way in (PLAIN, DRAFTED) for law in ("0", "1, top-p 0.9")
    ]
    plain, filtered, drafted, filtered_drafted = costs
    for each in costs:
        assert each["steps"] > 0 and each["tokens"] > 0 and each["calls"] > 0
        assert 0 < each["masks_ms"] < each["loop_ms"] and 0 < each["checks_ms"] < each["loop_ms"]
    for each in (plain, filtered):
        assert each["drafted"] == each["accepted"] == 0 and each["tokens"] <= 3
    for each in (drafted, filtered_drafted):
        assert each["drafted"] >= each["accepted"] > 0 and each["drafts_ms"] > 0
        assert each["steps"] < plain["steps"]
    assert plain["waits"] > 0, "the device samples what has strayed anew"
    assert len(capsys.readouterr().out.splitlines()) == 6
