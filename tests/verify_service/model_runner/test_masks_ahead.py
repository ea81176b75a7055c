"""Masks computed while a pass runs: which ones, in which order, and that they are those that a late question gives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest

from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted
from verify_service.core.engine_config import EngineConfig
from verify_service.core.request import SamplingParams
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.grammar.compiler import _compiled
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.matcher import GrammarFailure
from verify_service.grammar.request_grammar import AllowedTokens, RequestGrammar
from verify_service.grammar.together import Together, WordRows
from verify_service.model_runner.masks_ahead import MaskPace, MasksAhead

GREEDY, FILTERED = SamplingParams(temperature=0.0, seed=1), SamplingParams(temperature=1.0, top_p=0.9, seed=1)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> GrammarTokenizer:
    return load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(2,))


class Held:
    """A request under [ab]{6} with a tree: "a" above "b" and a token that is illegal there, and "b"."""

    def __init__(self, tokenizer: GrammarTokenizer, params: SamplingParams, **settings: object) -> None:
        self.a, self.b = (tokenizer.tokens.tokenize_str(letter)[0] for letter in "ab")
        state = admitted(EngineConfig(num_pages=8), [9, 9, 9], sampling=params)
        state.kv.num_computed_tokens = 2
        compiled = _compiled(Grammar(regex="[ab]{6}"), tokenizer, ForcedTexts(tokenizer))
        self.grammar = state.grammar = RequestGrammar(compiled, **settings)  # type: ignore[arg-type]
        tree = TokenTree((self.a, self.b, 400, self.b), (-1, 0, 0, -1), (-0.7, -0.9, -0.8, -0.3))
        self.item = ScheduledRequest(state, 1, tree)

    def late(self, *tokens: int) -> AllowedTokens:
        """What a grammar says once it has followed these tokens."""
        for token in tokens:
            self.grammar.step(token)
        allowed = self.grammar.allowed()
        self.grammar.go_back(0)
        return allowed


def same(early: AllowedTokens, late: AllowedTokens) -> bool:
    return early.words.tolist() == late.words.tolist() and early.only == late.only


def room(threads: int = 1, rows: int = 32) -> tuple[WordRows, Together]:
    return np.full((rows, 16), 0xFFFFFFFF, np.uint32), Together(threads)


def stop_after(count: int) -> Iterator[bool]:
    return chain([False] * count, repeat(True))


def test_masks_are_those_of_a_late_question(tokenizer: GrammarTokenizer) -> None:
    held = Held(tokenizer, FILTERED)
    ahead = MasksAhead([held.item], *room())
    ahead.compute(lambda: False)
    masks = ahead.of(held.item)
    assert sorted(masks) == [0, 1, 2, 4], "node 2 is illegal, and decides nothing"
    paths = {0: (), 1: (held.a,), 2: (held.a, held.b), 4: (held.b,)}
    held.grammar.follow_output([])
    assert held.grammar.length == 0
    assert all(same(masks[row], held.late(*path)) for row, path in paths.items())


def test_roots_come_first_then_the_likeliest_nodes_and_none_once_the_pass_is_over(tokenizer: GrammarTokenizer) -> None:
    first, second = Held(tokenizer, FILTERED), Held(tokenizer, FILTERED)
    for count, expected in ((0, ([], [])), (2, ([0], [0])), (3, ([0, 4], [0])), (5, ([0, 1, 4], [0, 4]))):
        ahead = MasksAhead([first.item, second.item], *room())
        over = stop_after(count)
        ahead.compute(lambda over=over: next(over))  # type: ignore[misc]
        assert (sorted(ahead.of(first.item)), sorted(ahead.of(second.item))) == expected


def test_what_is_needed_in_any_case_is_computed_at_last(tokenizer: GrammarTokenizer) -> None:
    filtered, straying = Held(tokenizer, FILTERED), Held(tokenizer, GREEDY)
    straying.grammar.end_step(strayed=True)
    ahead = MasksAhead([straying.item, filtered.item], *room())
    ahead.finish()
    assert sorted(ahead.of(filtered.item)) == [0] and not ahead.of(straying.item) and not ahead
    ahead = MasksAhead([straying.item, filtered.item], *room())
    ahead.finish(all_roots=True)
    assert sorted(ahead.of(filtered.item)) == sorted(ahead.of(straying.item)) == [0] and not ahead


def test_checked_tokens_have_masks_only_behind_illegal_ones(tokenizer: GrammarTokenizer) -> None:
    held = Held(tokenizer, GREEDY)
    assert not MasksAhead([held.item], *room())
    held.grammar.end_step(strayed=True)
    for _ in range(8):
        assert MasksAhead([held.item], *room())
        held.grammar.end_step(strayed=False)
    assert not MasksAhead([held.item], *room())


def test_a_grammar_begins_within_a_drafted_path(tokenizer: GrammarTokenizer) -> None:
    held = Held(tokenizer, FILTERED)
    held.grammar = held.item.state.grammar = Held(tokenizer, FILTERED, starts_after=(held.a,)).grammar
    ahead = MasksAhead([held.item], *room())
    ahead.compute(lambda: False)
    assert sorted(ahead.of(held.item)) == [1, 2]
    assert sorted(ahead.rows_of(held.item)) == [0, 1, 2, 4], "in front of that any token may come"
    rows = ahead.rows_of(held.item)
    assert [bool((ahead._room[rows[row]] == 0xFFFFFFFF).all()) for row in (0, 1, 2, 4)] == [True, False, False, True]


def test_ends_that_must_wait_are_no_rows_to_sample(tokenizer: GrammarTokenizer) -> None:
    held = Held(tokenizer, replace(FILTERED, max_tokens=9), min_tokens=9, stops=(2,))
    held.item = ScheduledRequest(held.item.state, 1, TokenTree.chain([held.a] * 6))
    ahead = MasksAhead([held.item], *room())
    ahead.compute(lambda: False)
    assert ahead.of(held.item)[6].only == 2


def test_a_failure_leaves_its_row_without_a_mask(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (GrammarFailure("a limit"), OverflowError("odd")):
        failing, other = Held(tokenizer, FILTERED), Held(tokenizer, FILTERED)

        def fail(*_: object, error: Exception = error, **__: object) -> AllowedTokens:
            raise error

        monkeypatch.setattr(failing.grammar, "allowed", fail)
        ahead = MasksAhead([failing.item, other.item], *room())
        ahead.compute(lambda: False)
        assert not ahead.of(failing.item) and sorted(ahead.of(other.item)) == [0, 1, 2, 4]
    assert [record.message for record in caplog.records] == ["a grammar could not be asked ahead"]


def test_masks_of_several_threads_are_the_same(tokenizer: GrammarTokenizer) -> None:
    """Roots that are as urgent are asked for together, each with its likeliest path, then one node of each request."""
    held = [Held(tokenizer, FILTERED) for _ in range(3)] + [Held(tokenizer, GREEDY) for _ in range(2)]
    held[3].grammar.end_step(strayed=True)
    expected = {}
    for threads in (1, 3):
        ahead = MasksAhead([each.item for each in held], *room(threads), all_roots=True)
        rounds = 0
        while ahead:
            ahead.compute(stop_after(1).__next__)
            rounds += 1
        found = [
            {row: (allowed.words.tolist(), allowed.only) for row, allowed in ahead.of(each.item).items()}
            for each in held
        ]
        assert [sorted(masks) for masks in found] == [[0, 1, 2, 4]] * 4 + [[0]]
        assert rounds == (17 if threads == 1 else 4)
        expected = expected or found
        assert found == expected
        rows = [row for each in held for row in ahead.rows_of(each.item).values()]
        assert sorted(rows) == list(range(17)) and ahead.taken == 17


def test_no_more_masks_are_computed_than_there_is_room_for(tokenizer: GrammarTokenizer) -> None:
    held = Held(tokenizer, FILTERED)
    ahead = MasksAhead([held.item], *room(rows=2))
    ahead.compute(lambda: False)
    assert sorted(ahead.of(held.item)) == [0, 4] and not ahead


def test_a_row_without_a_choice_is_none_to_sample(tokenizer: GrammarTokenizer) -> None:
    held = Held(tokenizer, replace(FILTERED, max_tokens=9), min_tokens=9, stops=(2,))
    held.item = ScheduledRequest(held.item.state, 1, TokenTree.chain([held.a] * 6))
    ahead = MasksAhead([held.item], *room())
    ahead.compute(lambda: False)
    assert sorted(ahead.rows_of(held.item)) == list(range(6)) and 6 in ahead.of(held.item)


def chained(tokenizer: GrammarTokenizer, expression: str, letters: str, params: SamplingParams = FILTERED) -> Held:
    """A request whose tree is a chain of these letters."""
    held = Held(tokenizer, params)
    compiled = _compiled(Grammar(regex=expression), tokenizer, ForcedTexts(tokenizer))
    held.grammar = held.item.state.grammar = RequestGrammar(compiled, stops=(2,))
    tokens = [tokenizer.tokens.tokenize_str(letter)[0] for letter in letters]
    held.item = ScheduledRequest(held.item.state, 1, TokenTree.chain(tokens))
    return held


def test_masks_along_the_likeliest_path_come_with_that_of_the_root(tokenizer: GrammarTokenizer) -> None:
    held = [chained(tokenizer, "abcabc", "abcabc"), chained(tokenizer, "[ab]{6}", "abxa")]
    ahead = MasksAhead([each.item for each in held], *room(threads=3))
    ahead.compute(stop_after(1).__next__)
    assert [sorted(ahead.of(each.item)) for each in held] == [[0, 1, 2, 3, 4, 5], [0, 1, 2]], "behind these is an end"
    for each in held:
        tree = each.item.tree
        assert tree is not None
        for row, allowed in ahead.of(each.item).items():
            assert same(allowed, each.late(*(tree.token_ids[node] for node in range(row))))
        rows = ahead.rows_of(each.item)
        assert all((ahead._room[rows[row]] == words).all() for row, (words, _) in ahead.of(each.item).items())


def test_where_the_output_may_end_the_grammar_itself_is_asked(tokenizer: GrammarTokenizer) -> None:
    held = [chained(tokenizer, "a(b(ab)?)?", "abab"), chained(tokenizer, "[ab]{6}", "ab")]
    ahead = MasksAhead([each.item for each in held], *room(threads=3))
    ahead.compute(stop_after(1).__next__)
    assert sorted(ahead.of(held[0].item)) == [0], "the output is complete behind the first node"
    ahead.compute(lambda: False)
    held[0].grammar.follow_output([])
    for row, allowed in ahead.of(held[0].item).items():
        assert same(allowed, held[0].late(*held[0].item.tree.token_ids[:row]))  # type: ignore[union-attr]
    assert sorted(ahead.of(held[0].item)) == [0, 1, 2, 3, 4]


def test_nodes_get_no_mask_that_would_be_late(tokenizer: GrammarTokenizer) -> None:
    for threads in (1, 3):
        held = [chained(tokenizer, "[ab]{6}", "abab") for _ in range(2)]
        ahead = MasksAhead([each.item for each in held], *room(threads))
        ahead.compute(lambda: False, until=0.0)
        assert [sorted(ahead.of(each.item)) for each in held] == [[0], [0]] and ahead, "roots are not asked about time"
        ahead.compute(lambda: False, until=time.perf_counter() + 60)
        assert [sorted(ahead.of(each.item)) for each in held] == [[0, 1, 2, 3, 4]] * 2


def test_a_chain_leaves_room_for_roots(tokenizer: GrammarTokenizer) -> None:
    held = [chained(tokenizer, "[ab]{6}", "abab") for _ in range(3)]
    straying = chained(tokenizer, "[ab]{6}", "abab", GREEDY)
    straying.grammar.end_step(strayed=True)
    everyone = [*held, straying]
    ahead = MasksAhead([each.item for each in everyone], *room(threads=3, rows=8))
    ahead.compute(lambda: False)
    assert [sorted(ahead.of(each.item)) for each in everyone] == [[0, 1]] * 3 + [[0, 1]] and ahead.taken == 8


def test_chains_are_not_asked_for_where_the_grammar_may_not_draft(tokenizer: GrammarTokenizer) -> None:
    held = [chained(tokenizer, "[ab]{6}", "abab") for _ in range(2)]
    held[0].grammar._matcher._compiled.may_draft = False
    ahead = MasksAhead([each.item for each in held], *room(threads=3))
    ahead.compute(lambda: False)
    assert [sorted(ahead.of(each.item)) for each in held] == [[0], [0, 1, 2, 3, 4]]


def test_ends_that_must_wait_are_no_rows_along_a_chain(tokenizer: GrammarTokenizer) -> None:
    """The least length counts from where a node is, not from its root."""
    for threads in (1, 3):
        masks = []
        for least in (0, 2, 4, 9):
            held = Held(tokenizer, replace(FILTERED, max_tokens=9), min_tokens=least, stops=(2, held_b(tokenizer)))
            held.item = ScheduledRequest(held.item.state, 1, TokenTree.chain([held.a] * 5))
            ahead = MasksAhead([held.item, Held(tokenizer, FILTERED).item], *room(threads))
            ahead.compute(lambda: False)
            masks.append([ahead.of(held.item)[row].has(held.b) for row in range(6)])
        assert masks == [[row >= least for row in range(6)] for least in (0, 2, 4, 9)]


def held_b(tokenizer: GrammarTokenizer) -> int:
    """The token of the letter."""
    return int(tokenizer.tokens.tokenize_str("b")[0])


def test_the_pace_is_learned() -> None:
    pace = MaskPace()
    for _ in range(40):
        pace.learn(10, 1e-3)
    pace.learn(0, 5.0)
    assert pace.each == pytest.approx(1e-4, rel=0.01)
