"""Walks under a grammar: what is checked, what is masked, and how often rows are sampled again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slipstream.grammar.grammar import Grammar
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream_kernels.token_tree import TokenTree
from support.verify_loop import admitted
from verify_service.core.acceptance import NO_TOKEN
from verify_service.core.engine_config import EngineConfig
from verify_service.core.grammar_seconds import GrammarSeconds
from verify_service.core.request import SamplingParams
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.core.step_result import VerifyResult
from verify_service.grammar.compiler import _compiled
from verify_service.grammar.forced_texts import ForcedTexts
from verify_service.grammar.request_grammar import AllowedTokens, RequestGrammar
from verify_service.grammar.together import Together
from verify_service.model_runner.constrained_path import ConstrainedPath, MaskedRow, decide

GREEDY, FILTERED = SamplingParams(temperature=0.0, seed=1), SamplingParams(temperature=1.0, top_p=0.9, seed=1)
EOS = 2


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> GrammarTokenizer:
    return load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(EOS,))


class Walk:
    """A chain of the tokens of "aaaa" below a root, under [ab]{6}; `answers` are what rows under masks give, by row."""

    def __init__(self, tokenizer: GrammarTokenizer, params: SamplingParams, regex: str = "[ab]{6}") -> None:
        self.a, self.b = (tokenizer.tokens.tokenize_str(letter)[0] for letter in "ab")
        state = admitted(EngineConfig(num_pages=8), [9, 9, 9], sampling=params)
        state.kv.num_computed_tokens = 2
        compiled = _compiled(Grammar(regex=regex), tokenizer, ForcedTexts(tokenizer))
        self.grammar = state.grammar = RequestGrammar(compiled)
        self.item = ScheduledRequest(state, 1, TokenTree.chain([self.a] * 4))
        self.asked: list[list[int]] = []
        self.seconds = GrammarSeconds()

    def run(self, sampled: dict[int, int], answers: dict[int, int]) -> VerifyResult:
        def sample_masked(rows: Sequence[MaskedRow]) -> list[int]:
            self.asked.append([each.row for each in rows])
            assert [each.position for each in rows] == [2 + len(each.tokens) for each in rows]
            return [answers.get(each.row, self.a) for each in rows]

        (result,) = decide([ConstrainedPath(self.item, self.grammar, 10, sampled)], sample_masked, self.seconds)
        return result


def test_legal_tokens_are_not_masked(tokenizer: GrammarTokenizer) -> None:
    walk = Walk(tokenizer, GREEDY)
    result = walk.run(dict.fromkeys(range(5), walk.a), {})
    assert result.path == ((0, 1, 2, 3), (walk.a,) * 5) and walk.asked == [] and not result.failure
    assert walk.seconds.checks > 0 and walk.seconds.masks == 0


def test_an_illegal_token_is_sampled_again_and_the_walk_goes_on(tokenizer: GrammarTokenizer) -> None:
    walk = Walk(tokenizer, GREEDY)
    result = walk.run({0: walk.a, 1: 400, 2: EOS, 3: walk.b, 4: walk.a}, {})
    assert result.path == ((0, 1, 2), (walk.a, walk.a, walk.a, walk.b))
    assert walk.asked == [[11], [12]]
    assert walk.seconds.checks > 0 and walk.seconds.masks > 0


def test_a_walk_ends_at_nodes_of_which_nothing_was_sampled(tokenizer: GrammarTokenizer) -> None:
    walk = Walk(tokenizer, GREEDY)
    assert walk.run({0: walk.a, 1: 400}, {}).path == ((0,), (walk.a, walk.a))


def test_filtered_rows_are_masked_at_once_along_what_was_sampled(tokenizer: GrammarTokenizer) -> None:
    walk = Walk(tokenizer, FILTERED)
    assert walk.run(dict.fromkeys(range(5), walk.a), {}).path == ((0, 1, 2, 3), (walk.a,) * 5)
    assert walk.asked == [[10, 11, 12, 13, 14]]
    walk = Walk(tokenizer, FILTERED)
    assert walk.run(dict.fromkeys(range(5), walk.a), {11: walk.b}).path == ((0,), (walk.a, walk.b))
    walk = Walk(tokenizer, FILTERED)
    assert walk.run({0: walk.a, 1: 400, 2: walk.a, 3: walk.a, 4: walk.a}, {}).path == ((0, 1, 2, 3), (walk.a,) * 5)
    assert walk.asked == [[10, 11], [12, 13, 14]]


def test_logits_that_are_no_numbers_decide_nothing(tokenizer: GrammarTokenizer) -> None:
    walk = Walk(tokenizer, GREEDY)
    result = walk.run({0: walk.a, 1: NO_TOKEN}, {11: NO_TOKEN})
    assert result.path == ((0,), (walk.a, NO_TOKEN)) and not result.failure


@pytest.mark.parametrize("params", [GREEDY, FILTERED])
def test_an_end_ends_the_path(tokenizer: GrammarTokenizer, params: SamplingParams) -> None:
    walk = Walk(tokenizer, params, regex="a{2}")
    result = walk.run({0: walk.a, 1: walk.a, 2: walk.a, 3: walk.a, 4: walk.a}, {12: EOS})
    assert result.path == ((0, 1), (walk.a, walk.a, EOS))


def test_a_grammar_that_cannot_be_asked_ends_its_own_path(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(tokenizer, GREEDY)

    def overflow(tokens: Sequence[int]) -> None:
        raise OverflowError(len(tokens))

    monkeypatch.setattr(walk.grammar, "follow_output", overflow)
    monkeypatch.setattr(walk.grammar, "is_at", lambda _: False)
    result = walk.run(dict.fromkeys(range(5), walk.a), {})
    assert result.path == ((), (NO_TOKEN,)) and "could not be asked" in result.failure


def test_rows_that_were_sampled_under_their_masks_are_taken_as_they_are(tokenizer: GrammarTokenizer) -> None:
    walk = Walk(tokenizer, FILTERED)
    masks = {0: walk.grammar.allowed()}
    path = ConstrainedPath(walk.item, walk.grammar, 10, {0: walk.a, 1: walk.b}, masks, {0, 1})
    (result,) = decide([path], lambda _: pytest.fail("nothing is left to sample"), walk.seconds)
    assert result.path == ((0,), (walk.a, walk.b))


def test_masks_that_are_there_are_not_computed_again(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = Walk(tokenizer, FILTERED)
    masks = {0: walk.grammar.allowed()}
    monkeypatch.setattr(walk.grammar, "allowed", lambda: pytest.fail("it is there"))
    path = ConstrainedPath(walk.item, walk.grammar, 10, {0: walk.b}, masks)
    (result,) = decide([path], lambda rows: [walk.a for _ in rows], walk.seconds)
    assert result.path == ((), (walk.a,))


def test_a_path_tells_whether_a_token_was_illegal(tokenizer: GrammarTokenizer) -> None:
    walk = Walk(tokenizer, GREEDY)
    walk.run({0: walk.a, 1: walk.a}, {})
    assert not walk.grammar.strays
    walk.run({0: 400, 1: walk.a}, {})
    assert walk.grammar.strays


def test_paths_are_cut_where_it_is_not_worth_it_to_sample_again(tokenizer: GrammarTokenizer) -> None:
    """Not in front of a root, which must have a token, and then the others have theirs, too."""
    asked: list[int] = []

    def is_worth(waiting: int) -> bool:
        asked.append(waiting)
        return False

    strays, at_root = Walk(tokenizer, GREEDY), Walk(tokenizer, FILTERED)
    sampled = {0: strays.a, 1: strays.b, 2: 400}
    for beside in (False, True):
        paths = [ConstrainedPath(strays.item, strays.grammar, 10, sampled | {1: strays.a})]
        paths += [ConstrainedPath(at_root.item, at_root.grammar, 20, {0: at_root.a})] * beside
        sampled_again: list[list[int]] = []

        def sample_masked(rows: Sequence[MaskedRow], again: list[list[int]] = sampled_again) -> list[int]:
            again.append([each.row for each in rows])
            return [strays.b for _ in rows]

        first, *others = decide(paths, sample_masked, strays.seconds, is_worth)
        if beside:
            assert sampled_again == [[12, 20]]
            assert first.path == ((0, 1), (strays.a, strays.a, strays.b)) and others[0].path == ((), (strays.b,))
        else:
            assert not sampled_again and first.path == ((0,), (strays.a, strays.a))
        assert strays.grammar.strays
    assert asked == [1]


def test_a_node_that_awaits_its_mask_is_not_verified(tokenizer: GrammarTokenizer) -> None:
    """In front of where a grammar begins, too: it has no token."""
    walk = Walk(tokenizer, FILTERED)
    sampled = {0: walk.a, 1: walk.a, 2: NO_TOKEN}
    for begins in (True, False):
        grammar = walk.grammar
        if not begins:
            compiled = _compiled(Grammar(regex="[ab]{6}"), tokenizer, ForcedTexts(tokenizer))
            grammar = RequestGrammar(compiled, starts_after=(400,))
        path = ConstrainedPath(walk.item, grammar, 10, sampled, {}, {0, 1})
        (result,) = decide([path], lambda _: pytest.fail("it is not worth it"), walk.seconds, lambda _: False)
        assert result.path == ((0,), (walk.a, walk.a)) and not result.failure
    path = ConstrainedPath(walk.item, grammar, 10, {0: NO_TOKEN}, {}, {0})
    assert decide([path], lambda _: [], walk.seconds)[0].path == ((), (NO_TOKEN,))


def test_what_a_root_would_have_got_without_its_mask_tells_whether_it_strays(tokenizer: GrammarTokenizer) -> None:
    for params, token, strays in ((GREEDY, 400, True), (GREEDY, None, False), (FILTERED, 400, False)):
        walk = Walk(tokenizer, params)
        path = ConstrainedPath(walk.item, walk.grammar, 10, {0: walk.a}, {}, {0})
        path.note_unmasked(walk.a if token is None else token)
        decide([path], lambda _: pytest.fail("nothing is left to sample"), walk.seconds)
        assert walk.grammar.strays == strays


@pytest.mark.parametrize("params", [GREEDY, FILTERED])
def test_masks_that_several_paths_lack_are_asked_for_together(
    tokenizer: GrammarTokenizer, monkeypatch: pytest.MonkeyPatch, params: SamplingParams
) -> None:
    """The same is decided; one whose question fails together asks it again alone."""
    found, alone = [], []
    allowed = RequestGrammar.allowed

    def counted(grammar: RequestGrammar, *room: Any, **options: Any) -> AllowedTokens:
        alone.append(options.get("complete") is None)
        return allowed(grammar, *room, **options)

    monkeypatch.setattr(RequestGrammar, "allowed", counted)
    for threads in (1, 2):
        walks = [Walk(tokenizer, params) for _ in range(3)] + [Walk(tokenizer, params, "a[ab]{2}")]
        walks[1].grammar._matcher._masks_alone = True
        paths = [
            ConstrainedPath(walk.item, walk.grammar, 10 * place, {0: walk.a, 1: 400, 2: walk.a})
            for place, walk in enumerate(walks)
        ]
        taken: list[MaskedRow] = []

        def sample_masked(
            rows: Sequence[MaskedRow], taken: list[MaskedRow] = taken, token: int = walks[0].a
        ) -> list[int]:
            taken += rows
            return [token] * len(rows)

        results = decide(paths, sample_masked, walks[0].seconds, together=Together(threads))
        found.append([(result.path, result.failure) for result in results])
        found.append([(each.row, each.words.tolist()) for each in sorted(taken, key=lambda each: each.row)])
        assert not all(alone) if threads == 2 else all(alone)
        alone.clear()
    assert found[:2] == found[2:]
