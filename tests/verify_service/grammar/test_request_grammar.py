"""What may come next, token by token, and back again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLParserLimits

from slipstream.grammar import trial
from slipstream.grammar.check import check
from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from support.panics import WORDS, PanickingMatcher, failing_tokens
from support.schemas import SCHEMAS
from verify_service.grammar import matcher as matcher_module
from verify_service.grammar.compiler import _compiled
from verify_service.grammar.drafting import forced_tree
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.matcher import CompiledGrammar, GrammarFailure, TokenMatcher, Words
from verify_service.grammar.request_grammar import RequestGrammar

EOS, SYSTEM = 2, 3


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> GrammarTokenizer:
    return load_tokenizer(tiny_model, vocab_size=520, eos_token_ids=(EOS,))


def compiled_of(grammar: Grammar, tokenizer: GrammarTokenizer) -> CompiledGrammar:
    return _compiled(grammar, tokenizer, ForcedTexts(tokenizer))


def ids(words: Words) -> list[int]:
    return np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist()


def of(tokenizer: GrammarTokenizer, text: str) -> list[int]:
    return tokenizer.tokens.tokenize_str(text)


def test_what_is_allowed_is_what_a_mask_leaves(tokenizer: GrammarTokenizer) -> None:
    pick = random.Random(1)
    for schema in SCHEMAS[::3]:
        grammar = RequestGrammar(compiled_of(Grammar(json_schema=json.dumps(schema), coerce_one_of=True), tokenizer))
        for _ in range(12):
            left = ids(grammar.allowed().words)
            assert left == [token for token in range(-1, 521) if grammar.allows(token)]
            goes_on = [token for token in left if token != EOS]
            if not goes_on:
                break
            grammar.step(pick.choice(goes_on))


def test_a_path_is_forgotten_and_output_is_not(tokenizer: GrammarTokenizer) -> None:
    pick = random.Random(2)
    compiled = compiled_of(Grammar(json_schema=json.dumps(SCHEMAS[-2])), tokenizer)
    output: list[int] = []
    grammar, fresh = RequestGrammar(compiled), RequestGrammar(compiled)
    for _ in range(20):
        for _ in range(pick.randint(0, 5)):
            going_on = [token for token in ids(grammar.allowed().words) if token != EOS]
            if going_on:
                grammar.step(pick.choice(going_on))
        grammar.follow_output(output)
        fresh = RequestGrammar(compiled)
        fresh.follow_output(output)
        assert ids(grammar.allowed().words) == ids(fresh.allowed().words)
        going_on = [token for token in ids(fresh.allowed().words) if token != EOS]
        if not going_on:
            break
        output.append(pick.choice(going_on))


def test_before_it_starts_everything_is_allowed(tokenizer: GrammarTokenizer) -> None:
    compiled = compiled_of(Grammar(regex="a"), tokenizer)
    grammar = RequestGrammar(compiled, starts_after=(40, 41))
    (a,) = of(tokenizer, "a")
    for token in (9, EOS, 41):
        assert not grammar.has_begun and grammar.allows(token)
        grammar.step(token)
    assert grammar.has_begun and ids(grammar.allowed().words) == [a]
    grammar.step(a)
    assert ids(grammar.allowed().words) == [EOS]
    grammar.go_back(3)
    assert grammar.has_begun and ids(grammar.allowed().words) == [a]
    grammar.go_back(2)
    assert not grammar.has_begun and grammar.allows(9)
    grammar.follow_output([9, 40, a])
    assert ids(grammar.allowed().words) == [EOS] and not grammar.allows(40)


def test_ends_come_where_the_grammar_is_complete(tokenizer: GrammarTokenizer) -> None:
    compiled = compiled_of(Grammar(regex="a[ab]?"), tokenizer)
    a, b = of(tokenizer, "a")[0], of(tokenizer, "b")[0]
    grammar = RequestGrammar(compiled, stops=(SYSTEM, b))
    assert not grammar.allows(EOS) and not grammar.allows(SYSTEM)
    grammar.step(a)
    assert grammar.allows(EOS) and grammar.allows(SYSTEM) and grammar.allows(b)
    assert {EOS, SYSTEM, a, b} <= set(ids(grammar.allowed().words))
    assert grammar.ends_output(b) and grammar.ends_output(EOS) and not grammar.ends_output(a)


def test_ends_that_are_not_due_come_only_where_nothing_else_may(tokenizer: GrammarTokenizer) -> None:
    compiled = compiled_of(Grammar(regex="aa?"), tokenizer)
    a = of(tokenizer, "a")[0]
    until_stopped = RequestGrammar(compiled, until_stopped=True)
    until_stopped.step(a)
    assert not until_stopped.allows(EOS) and EOS not in ids(until_stopped.allowed().words)
    until_stopped.step(a)
    assert until_stopped.allowed().only is None and ids(until_stopped.allowed().words) == [EOS]
    least = RequestGrammar(compiled, min_tokens=5)
    least.step(a)
    assert not least.allows(EOS) and EOS not in ids(least.allowed().words)
    least.step(a)
    assert least.allowed().only == EOS


def test_a_limit_that_other_questions_tripped_is_tried_again_with_nothing_built(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LLParserLimits(max_lexer_states=200, verbose_errors=False)
    monkeypatch.setattr(trial, "parser_limits", lambda: limits)
    text = check(Grammar(regex="(.*a.{7}b)|(.*c.{6}d)"), tokenizer)
    compiled, untouched = (CompiledGrammar.compile(text, tokenizer, ForcedTexts(tokenizer)) for _ in range(2))
    start, asked, alone = compiled.start, TokenMatcher(compiled), TokenMatcher(untouched)
    for other in range(6, 512):
        if asked.allows(other):
            asked.follow((other,))
            with suppress(GrammarFailure):
                asked.allowed()
            asked.go_back(1)
        if compiled.start is not start:
            break
    neighbour = TokenMatcher(compiled)
    for token in of(tokenizer, "qqq"):
        for matcher in (alone, asked, neighbour):
            matcher.follow((token,))
        assert ids(alone.allowed()[0]) == ids(asked.allowed()[0]) == ids(neighbour.allowed()[0])
    assert compiled.start is not start, "no limit was tripped: this shows nothing"


def test_what_cannot_go_on_says_why(tokenizer: GrammarTokenizer) -> None:
    matcher = TokenMatcher(compiled_of(Grammar(regex="ab"), tokenizer))
    with pytest.raises(GrammarFailure):
        matcher.follow(of(tokenizer, "b"))
    assert matcher.allows(of(tokenizer, "a")[0])


def test_output_that_cannot_be_followed_leaves_the_grammar_where_it_was(tokenizer: GrammarTokenizer) -> None:
    start, (a,), (b,) = 40, of(tokenizer, "a"), of(tokenizer, "b")
    grammar = RequestGrammar(compiled_of(Grammar(regex="ab"), tokenizer), starts_after=(start,))
    for output in ([9, start, b], [9, start, b], [start, b, b]):
        with pytest.raises(GrammarFailure):
            grammar.follow_output(output)
        assert not grammar.has_begun and grammar.length == 0
    grammar.follow_output([9, start, a])
    with pytest.raises(GrammarFailure):
        grammar.follow_output([9, start, a, a])
    assert grammar.length == 3 and ids(grammar.allowed().words) == [b]


def test_what_tripped_a_limit_is_compiled_anew_once_for_all(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compiled_of(Grammar(regex="ab"), tokenizer)
    first, second = TokenMatcher(compiled), TokenMatcher(compiled)
    starts = [compiled.start]
    (b,) = of(tokenizer, "b")
    for matcher in (first, second):
        # The error is one of the matcher alone: what is counted is who compiles.
        assert not matcher._matcher.consume_tokens([b]) and matcher._matcher.is_error()
        assert matcher.allows(of(tokenizer, "a")[0])
        starts.append(compiled.start)
    assert starts[0] is not starts[1] and starts[1] is starts[2]


def test_what_takes_long_to_compile_is_never_compiled_anew(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher_module, "RENEWAL_SECONDS", -1.0)
    compiled = compiled_of(Grammar(regex="ab"), tokenizer)
    start, matcher = compiled.start, TokenMatcher(compiled)
    assert not matcher.may_draft
    with pytest.raises(GrammarFailure):
        matcher.follow(of(tokenizer, "b"))
    assert compiled.start is start and matcher.allows(of(tokenizer, "a")[0])


AMBIGUOUS = Grammar(lark='start: s\ns: "a" | "b" | s s\n')


def test_a_grammar_that_reads_a_text_in_ever_more_ways_trips_a_limit(tokenizer: GrammarTokenizer) -> None:
    a, b = of(tokenizer, "a")[0], of(tokenizer, "b")[0]
    grammar = RequestGrammar(compiled_of(AMBIGUOUS, tokenizer))
    with pytest.raises(GrammarFailure, match="items"):
        grammar.follow_output([a, b] * 150)


def test_a_request_has_so_much_processor_time(tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_module, "OUTPUT_EACH", 0.0)
    monkeypatch.setattr(matcher_module, "OUTPUT_EXCESS", 0.002)
    a = of(tokenizer, "a")[0]
    compiled = compiled_of(AMBIGUOUS, tokenizer)
    grammar, other = RequestGrammar(compiled), RequestGrammar(compiled)
    grammar.follow_output([a] * 200)
    with pytest.raises(GrammarFailure, match="processor time"):
        grammar.allows(a)
    other.follow_output([a])
    assert other.allows(a)


def panicking(tokenizer: GrammarTokenizer, when: Callable[[str, int], bool], *, renewable: bool) -> CompiledGrammar:
    compiled = compiled_of(Grammar(regex="(ab){1,9}c"), tokenizer)
    compiled.start = PanickingMatcher(compiled.start, when)  # type: ignore[assignment]
    compiled.renewable = renewable
    return compiled


@pytest.mark.parametrize("method", ["consume_tokens", "validate_tokens", "unsafe_compute_mask_ptr", "is_accepting"])
def test_a_panic_is_tried_again_by_a_matcher_that_has_seen_nothing_else(
    tokenizer: GrammarTokenizer, method: str
) -> None:
    compiled = panicking(tokenizer, lambda name, followed: (name, followed) == (method, 1), renewable=True)
    panicked, sound = RequestGrammar(compiled), RequestGrammar(compiled_of(Grammar(regex="(ab){1,9}c"), tokenizer))
    for token in [of(tokenizer, letter)[0] for letter in "ababc"]:
        assert panicked.allows(token) and not panicked.allows(of(tokenizer, "x")[0])
        assert ids(panicked.allowed().words) == ids(sound.allowed().words)
        for grammar in (panicked, sound):
            grammar.step(token)
    assert panicked.allows(EOS)


@pytest.mark.parametrize("method", ["consume_tokens", "validate_tokens", "unsafe_compute_mask_ptr", "is_accepting"])
def test_a_panic_that_comes_again_fails_its_request_by_name(tokenizer: GrammarTokenizer, method: str) -> None:
    compiled = panicking(tokenizer, lambda name, followed: (name, followed) == (method, 1), renewable=False)
    grammar = RequestGrammar(compiled)
    a, b = (of(tokenizer, letter)[0] for letter in "ab")
    assert ids(grammar.allowed().words)
    grammar.step(a)
    failures = []
    for question in (lambda: grammar.allows(b), grammar.allowed, lambda: grammar.step(b)):
        try:
            question()
        except GrammarFailure as failure:
            failures.append(str(failure))
    assert len(failures) == 1 and failures[0].startswith("panic: ") and WORDS in failures[0]
    grammar.go_back(0)
    assert grammar.allows(a)


@pytest.mark.parametrize("also", ["deep_copy", "validate_tokens"])
def test_where_a_panic_keeps_it_from_going_back_it_fails(tokenizer: GrammarTokenizer, also: str) -> None:
    armed: list[int] = []
    compiled = panicking(tokenizer, lambda name, _: bool(armed) and name in ("rollback", also), renewable=False)
    grammar = RequestGrammar(compiled)
    a, b = (of(tokenizer, letter)[0] for letter in "ab")
    grammar.step(a)
    armed.append(1)
    grammar.go_back(0)
    with pytest.raises(GrammarFailure, match="panic"):
        grammar.allows(a)
    armed.clear()
    grammar.go_back(0)
    if also == "validate_tokens":
        assert grammar.allows(a) and not grammar.allows(b)


def test_drafts_that_panic_end_drafting_for_the_grammar_and_nothing_else(tokenizer: GrammarTokenizer) -> None:
    compiled = panicking(tokenizer, lambda name, _: name == "compute_ff_bytes", renewable=False)
    grammar = RequestGrammar(compiled)
    assert forced_tree(grammar, 8, 8) is None and not compiled.may_draft
    assert grammar.allows(of(tokenizer, "a")[0])


def test_of_a_text_that_cannot_be_split_its_first_tokens_are_drafted(tokenizer: GrammarTokenizer) -> None:
    panicking_tokens = replace(tokenizer, tokens=failing_tokens(), vocab_size=257, eos_token_ids=(0,))
    tree = ForcedTexts(panicking_tokens).tree(b"abc", 8, 8)
    assert tree is not None and tree.token_ids == (1 + ord("a"),)


def test_a_path_that_becomes_output_is_not_followed_again(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, (a,), (b,) = 40, of(tokenizer, "a"), of(tokenizer, "b")
    followed: list[tuple[int, ...]] = []
    follow = TokenMatcher.follow

    def noted(matcher: TokenMatcher, tokens: Sequence[int]) -> None:
        followed.append(tuple(tokens))
        follow(matcher, tokens)

    monkeypatch.setattr(TokenMatcher, "follow", noted)
    grammar = RequestGrammar(compiled_of(Grammar(regex="[ab]{6}"), tokenizer), starts_after=(start,))
    for token in (9, start, a, b):
        grammar.step(token)
    grammar.follow_output([9, start, a, b, a])
    assert followed == [(a,), (b,), (a,)] and grammar.length == 5
    for token in (a, a):
        grammar.step(token)
    grammar.follow_output([9, start, a, b, a, a, b])
    assert followed[3:] == [(a,), (a,), (b,)] and ids(grammar.allowed().words) == [a, b]
    grammar.follow_output([9, start, a, b, a, a, b])
    grammar.step(a)
    grammar.follow_output([9, start, a, b, a, a, b])
    assert grammar.length == 7 and len(followed) == 7
    other = RequestGrammar(compiled_of(Grammar(regex="[ab]{6}"), tokenizer), starts_after=(start,))
    for token in (start, a):
        other.step(token)
    other.follow_output([9, 9, 9])  # where the grammar does not begin
    assert not other.has_begun and other.length == 3
