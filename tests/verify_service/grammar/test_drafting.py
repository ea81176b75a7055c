"""Pruned trees keep what is legal and nothing else; forced text is drafted in the splits that a model may choose."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from slipstream.grammar.grammar import Grammar, StructuralTag, TagRule
from slipstream.grammar.tokenizer import GrammarTokenizer, load_tokenizer
from slipstream_kernels.token_tree import TokenTree
from support.schemas import CALL, SCHEMAS
from verify_service.grammar import matcher as matcher_module
from verify_service.grammar.compiler import _compiled
from verify_service.grammar.drafting import forced_tree, is_forced, legal_part
from verify_service.grammar.forced_texts import GRAMMAR, ForcedTexts
from verify_service.grammar.request_grammar import RequestGrammar


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> GrammarTokenizer:
    return load_tokenizer(tiny_model, vocab_size=512, eos_token_ids=(2,))


@pytest.fixture(scope="module")
def forced_texts(tokenizer: GrammarTokenizer) -> ForcedTexts:
    return ForcedTexts(tokenizer)


def test_a_tree_keeps_the_paths_that_can_be_output(tokenizer: GrammarTokenizer, forced_texts: ForcedTexts) -> None:
    pick = random.Random(4)
    cut = 0
    for schema in SCHEMAS[1::4]:
        compiled = _compiled(Grammar(json_schema=json.dumps(schema), coerce_one_of=True), tokenizer, forced_texts)
        likely = [*tokenizer.tokens.tokenize_str('{"a": true, 1false null[]'), 2]
        for _ in range(4):
            size = pick.randint(1, 12)
            ids = tuple(pick.choice([pick.choice(likely), pick.randrange(512)]) for _ in range(size))
            tree = TokenTree(ids, tuple(pick.randint(-1, node - 1) for node in range(size)))
            grammar = RequestGrammar(compiled)
            legal = []
            for node in range(size):
                path = [tree.token_ids[above] for above in tree.path(node)]
                alone = RequestGrammar(compiled)
                right = True
                for place, token in enumerate(path):
                    right = right and alone.allows(token) and (token != 2 or place == len(path) - 1)
                    if right and token != 2:
                        alone.step(token)
                legal += [node] if right else []
            part = legal_part(grammar, tree)
            assert part == (tree.part(legal) if legal else None)
            assert grammar.length == 0
            cut += len(tree) - len(legal)
    assert cut > 0


def test_forced_text_is_a_chain_with_other_splits_beside_it(
    tokenizer: GrammarTokenizer, forced_texts: ForcedTexts
) -> None:
    compiled = _compiled(Grammar(json_schema=json.dumps(CALL), whitespace_pattern=""), tokenizer, forced_texts)
    grammar = RequestGrammar(compiled)
    tree = forced_tree(grammar, 63, 63)
    assert tree is not None and is_forced(tree) and set(tree.sources or ()) == {GRAMMAR}
    tree.validate(vocab_size=512, max_nodes=63, max_depth=63)
    assert legal_part(grammar, tree) == tree
    chain = [
        tree.token_ids[node] for node in tree.path(next(n for n in range(len(tree)) if tree.depths[n] == tree.depth))
    ]
    text = tokenizer.tokens.decode_str(chain)
    assert '{"name":"get_weather","arguments":{"city":"'.startswith(text) and len(text) > 30
    assert len(set(zip(tree.parents, tree.token_ids, strict=True))) == len(tree) > tree.depth
    small = forced_tree(grammar, 5, 3)
    assert small is not None and len(small) <= 5 and small.depth <= 3
    assert forced_tree(grammar, 0, 3) is None and forced_tree(grammar, 3, 0) is None


SWALLOWED = "([ab]?b*){2}"
"""An expression that takes any b in front of one."""


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar(lark=f'start: A "b"\nA: /{SWALLOWED}/'),
        Grammar(lark='start: "abab" "c"\n%ignore /b+/'),
        Grammar(structural_tag=StructuralTag((TagRule("a", "a", "b>", regex="(b?a*b*){2}"),))),
        Grammar(json_schema='{"const": {"abab": 1}}', whitespace_pattern='["ab]*'),
    ],
)
def test_a_text_that_is_forced_without_end_is_drafted_in_part(
    tokenizer: GrammarTokenizer, forced_texts: ForcedTexts, grammar: Grammar
) -> None:
    followed = RequestGrammar(_compiled(grammar, tokenizer, forced_texts))
    for letter in tokenizer.tokens.tokenize_str("{" if grammar.json_schema else "abab"):
        followed.step(letter)
    length = followed.length
    tree = forced_tree(followed, 63, 63)
    assert followed.length == length
    assert tree is None or legal_part(followed, tree) == tree


def test_what_a_grammar_in_lark_forces_is_drafted(tokenizer: GrammarTokenizer, forced_texts: ForcedTexts) -> None:
    grammar = RequestGrammar(_compiled(Grammar(lark='start: "hello world" /[a-z]/'), tokenizer, forced_texts))
    tree = forced_tree(grammar, 63, 63)
    assert tree is not None and is_forced(tree)
    chain = tree.path(max(range(len(tree)), key=lambda node: tree.depths[node]))
    text = tokenizer.tokens.decode_str([tree.token_ids[node] for node in chain])
    assert len(text) > 3 and "hello world".startswith(text)
    assert legal_part(grammar, tree) == tree


def test_nothing_is_drafted_where_nothing_is_forced(tokenizer: GrammarTokenizer, forced_texts: ForcedTexts) -> None:
    compiled = _compiled(Grammar(regex="[a-c]+"), tokenizer, forced_texts)
    assert forced_tree(RequestGrammar(compiled), 20, 20) is None
    waiting = RequestGrammar(_compiled(Grammar(regex="abc"), tokenizer, forced_texts), starts_after=(7,))
    assert forced_tree(waiting, 20, 20) is None


def test_a_request_whose_drafts_take_long_gets_none_pruned_any_more(
    tokenizer: GrammarTokenizer, forced_texts: ForcedTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matcher_module, "DRAFT_EXCESS", 0.002)
    monkeypatch.setattr(matcher_module, "DRAFT_EACH", 0.0)
    compiled = _compiled(Grammar(lark='start: s\ns: "a" | "b" | s s\n'), tokenizer, forced_texts)
    (a,), (c,) = tokenizer.tokens.tokenize_str("a"), tokenizer.tokens.tokenize_str("c")
    grammar, other = RequestGrammar(compiled), RequestGrammar(compiled)
    output = [a] * 180
    grammar.follow_output(output)
    tree = TokenTree.chain([*[a] * 30, c])
    assert legal_part(grammar, tree) == tree and not grammar.may_draft
    assert forced_tree(grammar, 8, 8) is None and legal_part(grammar, TokenTree.chain([c])) == TokenTree.chain([c])
    assert grammar.length == len(output) and grammar.allows(a) and not grammar.allows(c)
    assert other.may_draft and legal_part(other, TokenTree.chain([c])) is None
