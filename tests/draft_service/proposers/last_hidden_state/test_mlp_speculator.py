"""MLP speculator proposer: trees of a speculator that knows the target, and of checkpoints as they are published."""

import numpy as np
import pytest
import torch

from draft_service.heads.eagle import Vocabulary
from draft_service.heads.mlp_speculator import MlpSpeculator, Stage
from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling
from draft_service.proposers.last_hidden_state.cpu import LastHiddenStateConfig
from draft_service.proposers.last_hidden_state.mlp_speculator import MlpSpeculatorProposer, create
from slipstream.rpc.errors import InvalidArgumentError
from support.eagle_heads import write_target
from support.mlp_speculators import LAYOUTS, write_speculator
from support.recurrent_target import VOCAB, WIDTH, RecurrentTarget, eagle2_tree, paths

GREEDY = Sampling(temperature=0.0)


class Oracle(MlpSpeculator):
    """Stages that leave the target's own next state."""

    def __init__(self, target, stages):
        vocabulary = Vocabulary(target.embedding, target.head, None, VOCAB)
        stage = Stage(torch.zeros(WIDTH, WIDTH), torch.zeros(WIDTH), torch.zeros(WIDTH), vocabulary)
        super().__init__([stage] * stages, scale_input=False)
        self.target = target

    def forward(self, stage, states, token_ids):
        return self.target.step(states, token_ids)


def proposer_of(target, depth, k, total):
    config = LastHiddenStateConfig(max_depth=depth, top_k=k, max_nodes=total)
    return MlpSpeculatorProposer("p", Oracle(target, depth), config)


@pytest.mark.parametrize(("depth", "k", "total"), [(3, 2, 6), (4, 3, 20), (5, 8, 64), (4, 1, 5)])
def test_tree_of_the_targets_own_distribution_is_eagle2s(depth, k, total):
    target, tokens = RecurrentTarget(), [3, 1, 4, 1, 5]
    proposer = proposer_of(target, depth, k, total)
    proposer.open(1, Opening(tokens, 3, GREEDY))
    proposer.take_features(1, 0, target.states(tokens)[:-1].bfloat16())
    (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
    wanted, got = eagle2_tree(target, tokens, depth, k, total), paths(tree)
    assert got.keys() == wanted.keys()
    assert max(abs(got[path] - wanted[path]) for path in wanted) < 1e-4


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, seed=11), Sampling(temperature=0.6, seed=5)])
def test_every_draft_of_a_speculator_that_knows_the_target_is_accepted(sampling):
    target, depth = RecurrentTarget(1), 4
    text = target.text([2, 7, 1], 60, sampling)
    proposer = proposer_of(target, depth, 1, depth + 1)
    states = target.states(text).bfloat16()
    proposer.open(1, Opening(text[:4], 3, sampling))
    proposer.take_features(1, 0, states[:3])
    length = 4
    while length + depth + 1 < len(text):
        (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
        assert tree.token_ids == tuple(text[length : length + depth])
        taken = 1 + length % (depth + 1)
        proposer.commit(1, text[length : length + taken])
        proposer.take_features(1, length - 1, states[length - 1 : length - 1 + taken])
        length += taken


def test_wide_trees_at_high_temperature_hold_the_targets_samples():
    target, sampling = RecurrentTarget(2), Sampling(temperature=1.0, seed=3)
    text = target.text([2, 7, 1], 50, sampling)
    proposer = proposer_of(target, 4, 3, 12)
    accepted = []
    for length in range(4, 40):
        proposer.open(length, Opening(text[:length], 3, sampling))
        proposer.take_features(length, 0, target.states(text[: length - 1]).bfloat16())
        (tree,) = proposer.propose([DraftRequest(length, 64, 63)])
        accepted.append(max(n for n in range(5) if n == 0 or tuple(text[length : length + n]) in paths(tree)))
        proposer.close(length)
    print(accepted)
    assert min(accepted) >= 1
    assert sum(accepted) / len(accepted) > 3


def test_log_probs_of_a_tree_are_the_speculators(tmp_path):
    """Every node's stage follows from its depth, its state from its parent's; requests share their passes."""
    write_speculator(tmp_path / "mlp", LAYOUTS["tied, input scaled"])
    write_target(tmp_path / "target")
    argument = f"{tmp_path}/mlp:target={tmp_path}/target:topk=3:num_draft_tokens=40"
    proposer = create(ProposerOptions("p", argument))
    assert (proposer.max_depth, proposer.max_nodes) == (3, 40)
    head = proposer._head
    states = torch.randn(2, 1, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    for number, state in enumerate(states, 1):
        proposer.open(number, Opening([number, 50 + number], 2, GREEDY))
        proposer.take_features(number, 0, state)
    trees = proposer.propose([DraftRequest(1, 64, 63), DraftRequest(2, 30, 63)])
    assert [len(tree) for tree in trees] == [21, 21]
    for number, (tree, state) in enumerate(zip(trees, states, strict=True), 1):
        found = paths(tree)
        assert max(map(len, found)) == 3
        for path, log_prob in found.items():
            left, total = state.float(), 0.0
            for stage, (token, drafted) in enumerate(zip((50 + number, *path), path, strict=False)):
                left = head.forward(stage, left, torch.tensor([token]))
                total += float(torch.log_softmax(head.logits(stage, left)[0].double(), 0)[drafted])
            np.testing.assert_allclose(log_prob, total, atol=1e-4)


def test_parameters(tmp_path):
    write_speculator(tmp_path / "mlp", LAYOUTS["nothing shared"])
    torch.save([7, 3, 90], tmp_path / "freq.pt")

    def made(argument, **options):
        return create(ProposerOptions("p", f"{tmp_path}/mlp{argument}", **options))

    for proposer, wanted in (
        (made(""), (8, 3)),
        (made(":topk=1"), (4, 3)),
        (made(":num_speculative_tokens=2"), (3, 2)),
        (made("", max_nodes=20, max_depth=9), (20, 3)),
        (made("", top_k=1), (4, 3)),
    ):
        assert (proposer.max_nodes, proposer.max_depth) == wanted
    proposer = made(f":token_map={tmp_path}/freq.pt:num_draft_tokens=64:topk=16")
    proposer.open(1, Opening([1, 2], 2, Sampling(seed=4)))
    proposer.take_features(1, 0, torch.randn(1, 32).bfloat16())
    (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
    assert set(tree.token_ids) == {7, 3, 90}
    assert len(tree) == 3 + 9 + 9
    for argument, message in (
        (":topk=17", "top_k"),
        (":num_draft_tokens=1", "max_nodes"),
        (":chunk=3", "one of max_depth"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            made(argument)
