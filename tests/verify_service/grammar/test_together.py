"""Grammars asked together: the same as one by one, and whoever fails or takes long is asked alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from support.panics import PanickingMatcher
from verify_service.grammar import together
from verify_service.grammar.compiler import _compiled
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.matcher import GrammarFailure
from verify_service.grammar.request_grammar import RequestGrammar
from verify_service.grammar.together import Together


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
    room = rows(6)
    assert Together(2).size > 1
    found = Together(2).masks(asked, room, 2)
    assert found == [False, True, False, False]
    for row, (grammar, complete) in enumerate(zip(asked, found, strict=True), 2):
        words = grammar.allowed(room[row], complete=complete).words
        assert words.tolist() == alone[row - 2] == room[row].tolist()
    assert (room[:2] == 0xFFFFFFFF).all()


def test_few_are_asked_one_by_one(tokenizer: GrammarTokenizer) -> None:
    one, other = grammars(tokenizer, "a", "b")
    assert Together(2).masks([one], rows(2), 0) == [None]
    assert Together(1).masks([one, other], rows(2), 0) == [None, None]
    assert Together(2).masks([], rows(2), 0) == [] and Together(1).size == 1
    (a,) = tokenizer.tokens.tokenize_str("a")
    Together(2).follow([(one, [a])])
    Together(1).follow([(one, [a]), (other, [a])])
    assert one.length == other.length == 0


def test_where_one_cannot_be_asked_each_is_asked_alone(tokenizer: GrammarTokenizer) -> None:
    (a,), (b,) = (tokenizer.tokens.tokenize_str(letter) for letter in "ab")
    sound, odd, other = grammars(tokenizer, "a", "b", "[ab]a")
    odd._matcher._matcher = PanickingMatcher(odd._matcher._matcher, lambda *_: False)  # type: ignore[assignment]
    assert Together(2).masks([sound, odd, other], rows(3), 0) == [None] * 3
    assert sound.allowed().words.any() and odd.allowed().words.any()
    outputs = [(sound, [a]), (odd, [b]), (other, [b])]
    Together(2).follow(outputs)
    assert [grammar.length for grammar, _ in outputs] == [0, 0, 0]
    for grammar, output in outputs:
        grammar.follow_output(output)
        assert grammar.allowed().words.any() and grammar.length == 1


def test_outputs_are_followed_together_and_one_that_fails_fails_alone(tokenizer: GrammarTokenizer) -> None:
    (a,), (b,) = (tokenizer.tokens.tokenize_str(letter) for letter in "ab")
    sound, wrong, strays, far, late = grammars(tokenizer, "ab", "ab", "[ab]{6}", "[ab]{6}", "[ab]{6}")
    late = RequestGrammar(late._matcher._compiled, starts_after=(40,))
    strays.step(a)
    strays.step(a)
    outputs = [(sound, [a]), (wrong, [b]), (strays, [a, b]), (far, [a, b, a]), (late, [7]), (late, [])]
    Together(2).follow(outputs[:5])
    assert [grammar.length for grammar, _ in outputs[:5]] == [1, 0, 2, 0, 0]
    for grammar, output in outputs[:5]:
        if grammar is wrong:
            with pytest.raises(GrammarFailure):
                grammar.follow_output(output)
            grammar.follow_output([a])
            continue
        grammar.follow_output(output)
        assert grammar.length == len(output)
    fresh = grammars(tokenizer, "ab", "ab", "[ab]{6}", "[ab]{6}")
    for grammar, after in zip(fresh, ([a], [a], [a, b], [a, b, a]), strict=True):
        grammar.follow_output(after)
    expected = [grammar.allowed().words.tolist() for grammar in fresh]
    assert [grammar.allowed().words.tolist() for grammar in (sound, wrong, strays, far)] == expected


def test_those_asked_with_one_that_took_long_are_asked_alone_until_they_are_quick(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = grammars(tokenizer, "a", "b")
    monkeypatch.setattr(together, "SLOW_SECONDS", 0.0)
    assert Together(2).masks(asked, rows(2), 0) == [False, False]
    monkeypatch.undo()
    assert Together(2).masks(asked, rows(2), 0) == [None, None]
    monkeypatch.setattr("verify_service.grammar.matcher.OUTPUT_EACH", -1.0)
    asked[0].allowed()
    monkeypatch.undo()
    asked[1].allowed()
    assert [grammar.asked_together() is None for grammar in asked] == [True, False]


def test_the_same_goes_for_those_that_follow_a_token(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = grammars(tokenizer, "a{9}", "b{9}")
    (a,), (b,) = (tokenizer.tokens.tokenize_str(letter) for letter in "ab")

    def follow(count: int) -> list[int]:
        outputs = list(zip(asked, ([a] * count, [b] * count), strict=True))
        Together(2).follow(outputs)
        together_to = [grammar.length for grammar, _ in outputs]
        for grammar, output in outputs:
            grammar.follow_output(output)
        return together_to

    monkeypatch.setattr(together, "SLOW_SECONDS", 0.0)
    assert follow(1) == [1, 1]
    monkeypatch.undo()
    assert all(grammar.asked_together() for grammar in asked), "for masks they are not"
    monkeypatch.setattr("verify_service.grammar.matcher.OUTPUT_EACH", -1.0)
    assert follow(2) == [1, 1]
    monkeypatch.undo()
    assert follow(3) == [2, 2]
    assert follow(4) == [4, 4]


def test_masks_behind_drafted_tokens_follow_those_of_their_grammars(tokenizer: GrammarTokenizer) -> None:
    (a,), (b,) = (tokenizer.tokens.tokenize_str(letter) for letter in "ab")
    asked = grammars(tokenizer, "[ab]{6}", "ab?", "x[0-9]*", "aba")
    chains = [[a, b, a], [], [a, b], [a, b]]
    room = rows(12)
    assert Together(2).masks(asked, room, 1, chains) == [False] * 4
    row = 1
    for grammar, chain in zip(asked, chains, strict=True):
        assert grammar.length == 0
        for further in range(1 + len(chain)):
            if further and not grammar.allows(chain[further - 1]):
                break
            if further:
                grammar.step(chain[further - 1])
            assert not grammar.may_be_complete(room[row + further])
            expected = grammar.allowed().words.tolist()
            grammar.go_back(0)
            words = grammar.allowed(room[row + further], complete=False, further=further).words
            assert words.tolist() == expected
            for token in chain[:further]:
                grammar.step(token)
        grammar.go_back(0)
        row += 1 + len(chain)
    assert (room[0] == 0xFFFFFFFF).all() and (room[row:] == 0xFFFFFFFF).all()
    with pytest.raises(ValueError, match="12 masks have no room in 11 rows"):
        Together(2).masks(asked, rows(11), 1, chains)


def test_the_models_end_is_in_each_mask_where_the_output_may_end(tokenizer: GrammarTokenizer) -> None:
    (a,), (b,) = (tokenizer.tokens.tokenize_str(letter) for letter in "ab")
    for expression, complete in (("ab?", [False, True, True]), ("(ab)*", [True, False, True]), ("", [True])):
        one, other = grammars(tokenizer, expression, "b")
        room = rows(8)
        chain = [a, b][: len(complete) - 1]
        assert Together(2).masks([one, other], room, 0, [chain, []]) == [complete[0], False]
        assert [one.may_be_complete(room[row]) for row in range(len(complete))] == complete


def test_what_fails_along_drafted_tokens_is_asked_without_them(tokenizer: GrammarTokenizer) -> None:
    (a,), (b,) = (tokenizer.tokens.tokenize_str(letter) for letter in "ab")
    for fails in (True, False):
        sound, odd = grammars(tokenizer, "[ab]{6}", "[ab]{6}")
        for grammar in (sound, odd):
            grammar.follow_output([a])
        before = odd._matcher._matcher
        if fails:
            odd._matcher._matcher = PanickingMatcher(before, lambda *_: False)  # type: ignore[assignment]
        else:
            before.consume_token(400)
            assert before.is_error()
        found = Together(2).masks([sound, odd], rows(6), 0, [[a, b], [b, a]])
        assert found == ([None, None] if fails else [False, None])
        assert odd.may_draft is fails, "only what trips a limit ends drafting"
        for grammar in (sound, odd):
            assert grammar.length == 1 and grammar.allowed().has(b)


def test_many_masks_may_take_longer(tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    (a,) = tokenizer.tokens.tokenize_str("a")
    clock = iter([0.0, 0.9, 0.0, 2.9, 0.0, 3.1])
    monkeypatch.setattr(together, "SLOW_SECONDS", 1.0)
    monkeypatch.setattr(together.time, "perf_counter", lambda: next(clock))
    most = Together(2).size
    for count, quick in ((2, True), (3 * most, True), (3 * most, False)):
        asked = grammars(tokenizer, "a{300}", "a{300}")
        chains = [[a] * (count // 2 - 1)] * 2
        Together(2).masks(asked, rows(count), 0, chains)
        assert (asked[0].asked_together() is not None) is quick


def test_what_may_come_next_is_asked_of_many_at_once(tokenizer: GrammarTokenizer) -> None:
    asked = grammars(tokenizer, "[ab]{6}", "a?", "x[0-9]*")
    alone = [grammar.allowed().words.tolist() for grammar in asked]
    found = Together(2).allowed(asked)
    assert [None if allowed is None else allowed.words.tolist() for allowed in found] == alone
    assert Together(1).allowed(asked) == [None] * 3
