"""The proposers that exist only in tests keep the rules of trees, and the oracle tells the truth."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lib.continuations import continuation_key, write_continuations
from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling, Target
from support import proposers

VOCABULARY = 512
PROMPT = tuple(range(10, 40))


@pytest.fixture(scope="module")
def truth():
    draw = random.Random(5)
    return [draw.randrange(VOCABULARY) for _ in range(64)]


@pytest.fixture(scope="module")
def made(tmp_path_factory, truth):
    path = tmp_path_factory.mktemp("oracle") / "known.json"
    write_continuations(path, {continuation_key(PROMPT, 0.8, 5): truth})
    both = [
        proposers.random_tree(ProposerOptions("random-tree")),
        proposers.oracle(ProposerOptions("oracle", str(path))),
    ]
    for each in both:
        each.bind(Target(VOCABULARY, "", 4096))
    return both


@given(done=st.integers(0, 63), max_nodes=st.integers(2, 64), max_depth=st.integers(1, 63))
def test_trees_keep_the_rules(made, truth, done, max_nodes, max_depth):
    for proposer in made:
        proposer.open(1, Opening([*PROMPT, *truth[:done]], len(PROMPT), Sampling(temperature=0.8, seed=5)))
        (tree,) = proposer.propose([DraftRequest(1, max_nodes, max_depth)])
        assert tree is not None
        tree.validate(vocab_size=VOCABULARY, max_nodes=max_nodes - 1, max_depth=max_depth)
        if proposer.name == "oracle":
            following = truth[done:]
            accepted, _ = tree.walk(following[0], [(*following[1:], *[0] * 64)[depth - 1] for depth in tree.depths])
            assert len(accepted) >= 1


def test_the_oracle_knows_only_what_it_was_told(made):
    made[1].open(2, Opening(list(PROMPT), len(PROMPT), Sampling(temperature=0.8, seed=6)))
    assert made[1].propose([DraftRequest(2, 64, 63)]) == [None]
