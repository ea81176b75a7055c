from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions
from draft_service.proposers.suffix.nodes import initialise
from draft_service.proposers.suffix.search import search
from draft_service.proposers.suffix.suffix import PIECE, SuffixConfig, SuffixProposer, create
from draft_service.proposers.suffix.tree import append_staged, remove_suffixes
from slipstream.rpc.errors import InvalidArgumentError
from slipstream_kernels.token_tree import TokenTree

RESPONSE = [50, 51, 52, 53, 54, 55, 56, 57]


def settle(proposer: SuffixProposer) -> None:
    while proposer.advance():
        pass


def say(proposer: SuffixProposer, session: int, prompt: list[int], response: list[int], tenant: str = "") -> None:
    """A whole request."""
    proposer.open(session, Opening(prompt, len(prompt), tenant=tenant))
    proposer.commit(session, response)
    proposer.close(session)
    settle(proposer)


def propose(proposer: SuffixProposer, session: int, *, max_nodes: int = 64, max_depth: int = 63) -> TokenTree | None:
    return proposer.propose([DraftRequest(session, max_nodes, max_depth)])[0]


def tokens(tree: TokenTree | None) -> tuple[int, ...]:
    return () if tree is None else tree.token_ids


def test_a_request_learns_from_its_own_prompt_and_output() -> None:
    proposer = create(ProposerOptions("suffix"))
    proposer.open(1, Opening([1, 2, 3, 4, 5, 6, 1, 2], 8))
    assert tokens(propose(proposer, 1)) == (3, 4)
    proposer.commit(1, [3, 4])
    assert tokens(propose(proposer, 1)) == (5, 6, 1, 2)
    proposer.commit(1, [9, 8])
    assert propose(proposer, 1) is None
    proposer.commit(1, [3, 4, 9])
    assert tokens(propose(proposer, 1)) == (8, 3, 4)


def test_past_responses_of_the_same_tenant_only() -> None:
    proposer = create(ProposerOptions("suffix"))
    say(proposer, 1, [1, 2, 3, 4], RESPONSE, tenant="a")
    for session, tenant, expected in ((2, "a", (53, 54, 55)), (3, "b", ()), (4, "", ())):
        proposer.open(session, Opening([9, 50, 51, 52], 2, tenant=tenant))
        assert tokens(propose(proposer, session)) == expected
    proposer.open(5, Opening([9, 50, 51, 52], 2, tenant="a", adapter_id="x"))
    assert propose(proposer, 5) is None
    proposer.open(6, Opening([9, 1, 2, 3], 2, tenant="a"))
    assert propose(proposer, 6) is None, "prompts are not kept"


def test_frequency_decides() -> None:
    proposer = create(ProposerOptions("suffix", "mode=path"))
    for session, last in enumerate((7, 8, 8, 7, 8), start=1):
        say(proposer, session, [1], [20, 21, last])
    proposer.open(10, Opening([20, 21], 1))
    tree = propose(proposer, 10)
    assert tree is not None and tree.token_ids == (8,)
    assert tree.log_probs == pytest.approx([-0.5108256])


def test_a_response_over_several_sessions_is_cached_once() -> None:
    proposer = create(ProposerOptions("suffix", "max_tree_depth=8"))
    response = list(range(100, 200))
    for session, (begin, end) in enumerate([(0, 40), (40, 70), (70, 100)], start=1):
        proposer.open(session, Opening([1, 2, *response[:begin]], 2))
        proposer.commit(session, response[begin:end])
        proposer.close(session)
        settle(proposer)
    assert proposer.cache.tokens == len(response) + 2 * 8
    proposer.open(9, Opening([3, 136, 137, 138, 139], 1))
    assert tokens(propose(proposer, 9)) == (140, 141, 142, 143), "also across the seams"


def test_a_long_prompt_is_taken_in_by_pieces() -> None:
    proposer = create(ProposerOptions("suffix"))
    text = [*range(100, 100 + 2 * PIECE), 100, 101]
    proposer.open(1, Opening(text, len(text)))
    assert propose(proposer, 1) is None
    assert proposer.advance()
    assert not proposer.advance()
    assert tokens(propose(proposer, 1)) == (102, 103)
    proposer.close(1)
    proposer.close(1)
    assert not proposer.advance()


@given(
    texts=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=40), min_size=1, max_size=5),
    max_nodes=st.integers(2, 20),
    max_depth=st.integers(1, 8),
    mode=st.sampled_from(["tree", "path"]),
)
@settings(max_examples=100)
def test_trees_keep_the_limits(texts, max_nodes, max_depth, mode) -> None:
    proposer = SuffixProposer("suffix", SuffixConfig(max_spec_factor=4, max_cached_requests=2, mode=mode, max_nodes=16))
    for session, text in enumerate(texts, start=1):
        proposer.open(session, Opening(text[:1], 1))
        for token in text[1:]:
            tree = propose(proposer, session, max_nodes=max_nodes, max_depth=max_depth)
            if tree is not None:
                tree.validate(vocab_size=4, max_nodes=min(max_nodes, 16) - 1, max_depth=max_depth)
            proposer.commit(session, [token])
            proposer.advance()
        proposer.close(session)


def test_the_argument_sets_parameters_by_their_known_names() -> None:
    options = ProposerOptions(
        "suffix", "suffix_decoding_max_tree_depth=24:max_spec_factor=2.5:mode=path:max_cached_requests=7", max_nodes=5
    )
    assert create(options).config == SuffixConfig(
        max_tree_depth=24, max_spec_factor=2.5, mode="path", max_cached_requests=7, max_nodes=5
    )


@pytest.mark.parametrize(
    "argument",
    [
        "depth=3",
        "max_tree_depth",
        "max_tree_depth=1",
        "max_tree_depth=x",
        "mode=graph",
        "min_token_prob=nan",
        "mode=path:mode=tree",
    ],
)
def test_wrong_arguments_are_refused(argument) -> None:
    with pytest.raises(InvalidArgumentError):
        create(ProposerOptions("suffix", argument))


def test_everything_is_compiled_before_the_first_request() -> None:
    create(ProposerOptions("suffix"))
    assert all(each.signatures for each in (initialise, append_staged, remove_suffixes, search))
