from random import Random

import pytest

from benchmarks.local_engine.synthetic_trees import OracleTrees, RandomTrees, SizedTrees, TreesByName, topology
from slipstream.generation_types import FinishReason
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import Committed, RequestOpening
from verify_service.core.request import RequestKey, SamplingParams

VOCAB = 64


def opening(request_id, prompt=(5, 6, 7), proposer="", temperature=0.0):
    sampling = SamplingParams(temperature=temperature, seed=9)
    return RequestOpening(RequestKey(0, request_id), proposer, prompt, len(prompt), sampling, 0, "", "", 0)


def committed(request_id, tokens, max_nodes=64, max_depth=40):
    return Committed(RequestKey(0, request_id), tuple(tokens), 0, max_nodes, max_depth)


def trees_of(source, count, max_nodes, max_depth):
    source.begin(opening(0))
    for step in range(count):
        source.commit([committed(0, [step % VOCAB], max_nodes, max_depth)])
        (tree,) = source.collect([RequestKey(0, 0)])
        yield tree
    source.end(RequestKey(0, 0), FinishReason.LENGTH)


def contains(tree, path):
    at = -1
    for token in path:
        at = next((child for child in tree.children(at) if tree.token_ids[child] == token), None)
        if at is None:
            return False
    return True


@pytest.mark.parametrize(("max_nodes", "max_depth"), [(64, 40), (9, 3), (2, 1)])
def test_random_trees_fit_and_vary(max_nodes, max_depth):
    trees = list(trees_of(RandomTrees(VOCAB), 300, max_nodes, max_depth))
    for tree in trees:
        if tree is not None:
            tree.validate(vocab_size=VOCAB, max_nodes=max_nodes - 1, max_depth=max_depth)
    sizes = {0 if tree is None else len(tree) for tree in trees}
    assert 0 in sizes
    assert max_nodes - 1 in sizes
    if max_nodes == 64:
        assert len({tree.depth for tree in trees if tree}) > 5


def test_an_oracle_hides_the_truth_among_decoys():
    truth = tuple(Random(1).choices(range(VOCAB), k=200))
    source = OracleTrees(VOCAB, {((5, 6, 7), 0.0, 9): truth}, seed=4)
    source.begin(opening(0))
    at, deepest, branching = 0, 0, 0
    while at < len(truth) - 1:
        source.commit([committed(0, truth[at : at + 1], 40, min(30, len(truth) - at - 2))])
        at += 1
        (tree,) = source.collect([RequestKey(0, 0)])
        if tree is None:
            assert at >= len(truth) - 2
            continue
        tree.validate(vocab_size=VOCAB, max_nodes=39, max_depth=30)
        matched = max(depth for depth in range(31) if contains(tree, truth[at : at + depth]))
        assert matched >= 1
        sampled = dict(enumerate(truth[at:]))
        accepted, _ = tree.walk(sampled[0], [sampled.get(depth, -1) for depth in tree.depths])
        assert len(accepted) == matched  # no decoy stands where the truth would be looked for
        deepest, branching = (
            max(deepest, matched),
            branching + any(len(tree.children(node)) > 1 for node in range(-1, len(tree))),
        )
    assert deepest == 30
    assert branching > 50


def test_an_oracle_without_room_proposes_nothing():
    source = OracleTrees(VOCAB, {((5, 6, 7), 0.0, 9): (1, 2, 3)})
    source.begin(opening(0))
    source.commit([committed(0, (1,), max_nodes=1, max_depth=0)])
    assert source.collect([RequestKey(0, 0)]) == [None]


def test_sized_trees_have_the_size_asked_for():
    source = SizedTrees(VOCAB)
    source.begin(opening(0))
    source.commit([committed(0, (1,))])
    for rows in (1, 2, 16, 64):
        source.resize(rows)
        for _ in range(20):
            (tree,) = source.collect([RequestKey(0, 0)])
            assert len(tree) == rows - 1
            tree.validate(vocab_size=VOCAB, max_nodes=63, max_depth=8)


def test_each_request_gets_its_own_proposers_trees():
    sized, oracle = SizedTrees(VOCAB), OracleTrees(VOCAB, {((5, 6, 7), 0.0, 9): (1, 2, 3, 4)})
    sized.resize(5)
    source = TreesByName({"sized": sized, "oracle": oracle})
    assert source.known("oracle")
    assert not source.known("other")
    keys = [RequestKey(0, 0), RequestKey(0, 1)]
    source.begin(opening(0, proposer="oracle"))
    source.begin(opening(1, proposer="sized"))
    source.commit([committed(0, (1,), 4, 1), committed(1, (1,))])
    first, second = source.collect(keys)
    assert contains(first, (2,))
    assert len(second) == 4
    for key in keys:
        source.end(key, FinishReason.LENGTH)
    source.begin(opening(0, proposer="sized"))  # a key may come back


def test_topologies_keep_to_their_depth():
    for chaining in (0.0, 0.5, 1.0):
        tree = TokenTree((0,) * 40, topology(Random(2), 40, 6, chaining))
        tree.validate(vocab_size=1, max_nodes=40, max_depth=6)
        assert tree.depth == 6
