"""Masks of many requests at once: the same as one by one, and whoever fails or takes long is asked alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from support.panics import PanickingMatcher
from verify_service.grammar import mask_batch
from verify_service.grammar.compiler import _compiled
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.mask_batch import MaskBatch
from verify_service.grammar.request_grammar import RequestGrammar


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> GrammarTokenizer:
    return load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(2,))


def grammars(tokenizer: GrammarTokenizer, *expressions: str) -> list[RequestGrammar]:
    return [
        RequestGrammar(_compiled(Grammar(regex=expression), tokenizer, ForcedTexts(tokenizer)))
        for expression in expressions
    ]


def rows(count: int) -> np.ndarray:
    return np.full((count, 16), 0xFFFFFFFF, np.uint32)


def test_masks_are_those_of_each_alone(tokenizer: GrammarTokenizer) -> None:
    asked = grammars(tokenizer, "[ab]{6}", "a?", "x[0-9]*", "[^a]+")
    alone = [grammar.allowed().words.tolist() for grammar in asked]
    batch = MaskBatch(rows(6), 2)
    assert batch.size > 1 and batch.ask(asked, 2) == [True] * 4
    for row, grammar in enumerate(asked, 2):
        words = grammar.allowed(batch.rows[row], answered=True).words
        assert words.tolist() == alone[row - 2] == batch.rows[row].tolist()
    assert (batch.rows[:2] == 0xFFFFFFFF).all()


def test_few_are_asked_one_by_one(tokenizer: GrammarTokenizer) -> None:
    one, other = grammars(tokenizer, "a", "b")
    assert MaskBatch(rows(2), 2).ask([one], 0) == [False]
    assert MaskBatch(rows(2), 1).ask([one, other], 0) == [False, False]
    assert MaskBatch(rows(2), 2).ask([], 0) == [] and MaskBatch(rows(2), 1).size == 1


def test_where_one_cannot_be_asked_each_is_asked_alone(tokenizer: GrammarTokenizer) -> None:
    sound, odd, other = grammars(tokenizer, "a", "b", "c")
    odd._matcher._matcher = PanickingMatcher(odd._matcher._matcher, lambda *_: False)  # type: ignore[assignment]
    assert MaskBatch(rows(3), 2).ask([sound, odd, other], 0) == [False] * 3
    assert sound.allowed().words.any() and odd.allowed().words.any()


def test_those_asked_with_one_that_took_long_are_asked_alone_until_they_are_quick(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = grammars(tokenizer, "a", "b")
    batch = MaskBatch(rows(2), 2)
    monkeypatch.setattr(mask_batch, "SLOW_SECONDS", 0.0)
    assert batch.ask(asked, 0) == [True, True]
    monkeypatch.undo()
    assert all(grammar.asked_together() is None for grammar in asked) and batch.ask(asked, 0) == [False, False]
    monkeypatch.setattr("verify_service.grammar.matcher.OUTPUT_EACH", -1.0)
    asked[0].allowed()
    monkeypatch.undo()
    asked[1].allowed()
    assert [grammar.asked_together() is None for grammar in asked] == [True, False]


def test_rows_lie_one_behind_the_other() -> None:
    with pytest.raises(ValueError, match="one behind the other"):
        MaskBatch(rows(4)[::2], 1)
