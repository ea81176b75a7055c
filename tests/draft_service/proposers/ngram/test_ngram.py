from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions
from draft_service.proposers.ngram.ngram import NgramConfig, NgramProposer, create
from slipstream.rpc.errors import InvalidArgumentError
from slipstream_kernels.token_tree import TokenTree

ROOMY = {"prompt_lookup_min": 2, "max_nodes": 64, "max_depth": 63, "max_matches": 64, "trust": 63}


def propose(tokens, *, max_nodes=64, max_depth=63, **config) -> TokenTree | None:
    proposer = NgramProposer("ngram", NgramConfig(**ROOMY | config))
    proposer.open(1, Opening(tokens, 1))
    return proposer.propose([DraftRequest(1, max_nodes, max_depth)])[0]


def test_longest_match_comes_first_then_the_most_recent() -> None:
    #        1 2 3 -> 4       2 3 -> 5       3 -> 6       2 3 -> 7       1 2 3 ?
    tokens = [1, 2, 3, 4, 9, 8, 2, 3, 5, 9, 8, 3, 6, 9, 8, 2, 3, 7, 9, 8, 1, 2, 3]
    tree = propose(tokens, max_depth=1, prompt_lookup_min=1)
    assert tree == TokenTree((4, 7, 5, 6), (-1, -1, -1, -1))
    assert propose(tokens, max_depth=1, prompt_lookup_min=2) == TokenTree((4, 7, 5), (-1, -1, -1))


def test_continuations_share_their_common_prefix() -> None:
    tokens = [1, 2, 3, 4, 5, 1, 2, 3, 4, 6, 1, 2]
    assert propose(tokens, max_depth=3) == TokenTree((3, 4, 6, 5), (-1, 0, 1, 1))


def test_budgets_count_the_root() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    assert propose(tokens, max_nodes=4, max_depth=63) == TokenTree.chain((3, 4, 5))
    assert propose(tokens, max_nodes=64, max_depth=2) == TokenTree.chain((3, 4))


def test_a_short_match_is_not_followed_far() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1]
    assert propose(tokens, prompt_lookup_min=1, trust=2) == TokenTree.chain((2, 3))
    assert propose([*tokens, 2], prompt_lookup_min=1, trust=2) == TokenTree.chain((3, 4, 5, 6))


@pytest.mark.parametrize("tokens", [[1], [1, 2], [1, 2, 3, 4], [5, 1, 5, 2, 5]])
def test_without_a_match_there_is_no_tree(tokens) -> None:
    assert propose(tokens) is None


def test_a_long_prompt_is_indexed_in_pieces() -> None:
    proposer = NgramProposer("ngram", NgramConfig())
    tokens = [1, 2, 3, 4, *range(10, 6000), 1, 2]
    proposer.open(1, Opening(tokens, len(tokens)))
    assert proposer.propose([DraftRequest(1, 8, 8)]) == [None], "not ready: the step goes on plainly"
    assert proposer.advance()
    assert not proposer.advance()
    tree = proposer.propose([DraftRequest(1, 8, 8)])[0]
    assert tree is not None
    assert tree.token_ids[:2] == (3, 4)
    proposer.close(1)
    assert not proposer.advance()


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    cuts=st.lists(st.integers(1, 60), max_size=4),
    shortest=st.integers(1, 3),
    extra=st.integers(0, 3),
    max_nodes=st.integers(2, 20),
    max_depth=st.integers(1, 8),
)
@settings(max_examples=300)
def test_every_path_continues_an_earlier_occurrence_of_the_suffix(
    tokens, cuts, shortest, extra, max_nodes, max_depth
) -> None:
    config = NgramConfig(prompt_lookup_min=shortest, prompt_lookup_max=shortest + extra, max_nodes=64, max_depth=63)
    proposer = NgramProposer("ngram", config)
    edges = sorted({cut for cut in cuts if cut < len(tokens)})
    first = edges[0] if edges else len(tokens)
    proposer.open(1, Opening(tokens[:first], first))
    for begin, end in zip(edges, [*edges[1:], len(tokens)], strict=False):
        proposer.propose([DraftRequest(1, max_nodes, max_depth)])
        proposer.commit(1, tokens[begin:end])
    (tree,) = proposer.propose([DraftRequest(1, max_nodes, max_depth)])

    suffix = tokens[-shortest:]
    text = range(len(tokens))
    occurs = len(suffix) == shortest and any(tokens[i : i + shortest] == suffix for i in text[: -shortest or None])
    assert (tree is not None) == occurs
    if tree is None:
        return
    tree.validate(vocab_size=4, max_nodes=max_nodes - 1, max_depth=max_depth)
    siblings = list(zip(tree.parents, tree.token_ids, strict=True))
    assert len(set(siblings)) == len(siblings)
    for node in range(len(tree)):
        path = [tree.token_ids[i] for i in tree.path(node)]
        wanted = suffix + path
        assert any(tokens[i : i + len(wanted)] == wanted for i in text)


def test_the_argument_sets_the_lengths() -> None:
    def config(argument: str) -> NgramConfig:
        return create(ProposerOptions("ngram", argument)).config

    assert (config("").prompt_lookup_min, config("").prompt_lookup_max) == (1, 5)
    assert (config("2-8").prompt_lookup_min, config("2-8").prompt_lookup_max) == (2, 8)
    assert (config("4").prompt_lookup_min, config("4").prompt_lookup_max) == (1, 4)
    assert (config("1").prompt_lookup_min, config("1").prompt_lookup_max) == (1, 1)
    longest = {"2": 5, "5": 5, "7": 7, "64": 64}
    assert {low: config(f"prompt_lookup_min={low}").prompt_lookup_max for low in longest} == longest
    assert config("prompt_lookup_max=3:max_matches=1") == NgramConfig(prompt_lookup_max=3, max_matches=1)
    for wrong in (
        "x",
        "3-",
        "-3",
        "5-2",
        "0",
        "65",
        "prompt_lookup_max=0",
        "prompt_lookup_min=65",
        "prompt_lookup_min=7:prompt_lookup_max=5",
        "lookup=3",
    ):
        with pytest.raises(InvalidArgumentError, match="proposer ngram: "):
            config(wrong)


def test_the_operator_sets_the_limits() -> None:
    proposer = create(ProposerOptions("lookup", max_nodes=4, max_depth=2))
    assert (proposer.name, proposer.max_nodes, proposer.max_depth) == ("lookup", 4, 2)
