"""Medusa proposer: the likeliest combinations of the heads' tokens, and what comes of states as they arrive."""

from hashlib import sha256
from itertools import product

import numpy as np
import pytest
import torch

from draft_service.heads.medusa import MedusaHead, MedusaHeads
from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling, SessionRefusedError, Target
from draft_service.proposers.cpu_common.kv_cache import DraftSession
from draft_service.proposers.cpu_common.noise_coupling import Coupling
from draft_service.proposers.cpu_common.rows import Branch
from draft_service.proposers.last_hidden_state.cpu import LastHiddenStateConfig
from draft_service.proposers.last_hidden_state.medusa import MedusaProposer, create
from draft_service.proposers.tree_expansion import Expansion
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from support.eagle_heads import write_target
from support.medusa_heads import LAYOUTS, write_medusa
from support.recurrent_target import VOCAB, RecurrentTarget, paths

GREEDY = Sampling(temperature=0.0)
NO_TOKENIZER = sha256().hexdigest()
TARGET = Target(vocab_size=96, tokenizer_fingerprint=NO_TOKENIZER, max_context=512, hidden_size=32, num_layers=12)
DEPTH = 4


class DeafTarget(RecurrentTarget):
    """A target whose states do not hear its tokens: all that Medusa's heads could ever know."""

    def step(self, state, tokens):
        return torch.tanh(2 * state @ self.mix.T + self.embedding[0]).bfloat16().float()


class Oracle(MedusaHeads):
    """Heads with the scores that a deaf target will have."""

    def __init__(self, target):
        super().__init__([MedusaHead([], target.head)] * DEPTH, None, VOCAB)
        self.target = target

    def logits(self, head, states):
        for _ in range(head + 1):
            states = self.target.step(states, None)
        return states @ self.target.head.T


def proposer_of(target, k, total):
    return MedusaProposer("p", Oracle(target), LastHiddenStateConfig(top_k=k, max_nodes=total))


def tree_of(proposer, number, text, length, sampling, states):
    proposer.open(number, Opening(text[:length], 3, sampling))
    proposer.take_features(number, 0, states[: length - 1].bfloat16())
    (tree,) = proposer.propose([DraftRequest(number, 64, 63)])
    proposer.close(number)
    return tree


def best_combinations(target, tokens, k, total, presence=0.0, prompt=3):
    """The `total` - 1 likeliest paths of all combinations of the k best tokens of each level."""
    found = {}
    levels = [target.states([*tokens, *[0] * depth])[-1].double() @ target.head.double().T for depth in range(DEPTH)]
    for depth in range(1, DEPTH + 1):
        for ranks in product(range(k), repeat=depth):
            path, score = (), 0.0
            for logits, rank in zip(levels, ranks, strict=False):
                said = torch.tensor([*tokens[prompt:], *path])
                best = torch.topk(
                    torch.log_softmax(logits - presence * torch.zeros(VOCAB).index_fill(0, said, 1), 0), k
                )
                path, score = (*path, int(best.indices[rank])), score + float(best.values[rank])
            found[path] = score
    return dict(sorted(found.items(), key=lambda each: -each[1])[: total - 1])


@pytest.mark.parametrize(("k", "total", "presence"), [(2, 9, 0), (4, 64, 0), (3, 30, 0.7), (1, 5, 0)])
def test_tree_is_the_best_of_all_combinations(k, total, presence):
    target, tokens = DeafTarget(), [3, 1, 4, 1, 5]
    sampling = Sampling(temperature=0.0, presence_penalty=presence)
    tree = tree_of(proposer_of(target, k, total), 1, tokens, 5, sampling, target.states(tokens))
    wanted, got = best_combinations(target, tokens, k, total, presence), paths(tree)
    assert got.keys() == wanted.keys()
    assert max(abs(got[path] - wanted[path]) for path in wanted) < 1e-4


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, seed=11), Sampling(temperature=0.6, seed=5)])
def test_every_draft_of_heads_that_know_the_target_is_accepted(sampling):
    target = DeafTarget(1)
    text = target.text([2, 7, 1], 60, sampling)
    states = target.states(text).bfloat16()
    proposer = proposer_of(target, 1, 0)
    proposer.open(1, Opening(text[:4], 3, sampling))
    proposer.take_features(1, 0, states[:3])
    length = 4
    while length + DEPTH + 1 < len(text):
        (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
        assert tree.token_ids == tuple(text[length : length + DEPTH])
        taken = 1 + length % (DEPTH + 1)
        proposer.commit(1, text[length : length + taken])
        proposer.take_features(1, length - 1, states[length - 1 : length - 1 + taken])
        length += taken


def test_trees_at_high_temperature_hold_the_targets_samples():
    target, sampling = DeafTarget(2), Sampling(temperature=1.0, seed=3)
    text = target.text([2, 7, 1], 50, sampling)
    states, proposer = target.states(text), proposer_of(target, 3, 12)
    accepted = []
    for length in range(4, 40):
        found = paths(tree_of(proposer, length, text, length, sampling, states))
        accepted.append(max(n for n in range(DEPTH + 1) if n == 0 or tuple(text[length : length + n]) in found))
    print(accepted)
    assert min(accepted) >= 1
    assert sum(accepted) / len(accepted) > 3


@pytest.mark.parametrize(
    "rules", [{}, {"top_k": 3}, {"frequency_penalty": 0.5}, {"min_tokens": 9, "stop_token_ids": (3,)}]
)
def test_nodes_of_a_level_are_chosen_as_if_each_had_its_own_row(rules):
    target, sampling, tokens = DeafTarget(3), Sampling(temperature=0.8, seed=9, **rules), [3, 1, 4, 1, 5]
    states = target.states(tokens)
    tree = tree_of(proposer_of(target, 4, 30), 1, tokens, 5, sampling, states)
    coupling, head = Coupling(VOCAB, ()), Oracle(target)
    coupling.open(1, tokens, 3, sampling)
    branch = Branch(DraftSession(1, tokens, 3, sampling), Expansion(width=64, budget=29, max_depth=DEPTH))
    for level in range(DEPTH):
        row = head.logits(level, states[3:4]).numpy()
        coupling.extend(np.repeat(row, len(branch.expansion.frontier), axis=0), [branch], 4)
    assert tree == branch.expansion.tree()
    assert len(tree) == 29


def served(tmp_path, layout="vLLM", argument=""):
    write_medusa(tmp_path / "heads", LAYOUTS[layout])
    write_target(tmp_path / "target")
    proposer = create(ProposerOptions("p", f"{tmp_path}/heads:target={tmp_path}/target{argument}"))
    proposer.bind(TARGET)
    return proposer


def test_the_newest_state_is_all_it_takes(tmp_path):
    proposer = served(tmp_path, "TGI, rows of the target")
    assert (proposer.feature_boundaries, proposer.target_folder) == ((13,), tmp_path / "target")
    assert (proposer.max_nodes, proposer.max_depth) == (8, 3)
    states = torch.randn(9, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    tokens = [5, 6, 7, 8, 9, 10]
    proposer.open(1, Opening(tokens, 4, GREEDY, cached_length=5))
    assert proposer.propose([DraftRequest(1, 64, 63)]) == [None]
    proposer.commit(1, [11, 12])
    assert proposer.propose([DraftRequest(1, 64, 63)]) == [None]
    proposer.take_features(1, 5, states[5:6])
    assert proposer.propose([DraftRequest(1, 64, 63)]) == [None]
    proposer.take_features(1, 6, states[6:7])
    (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
    assert len(tree) == 7
    assert paths(tree) == paths(tree_of(proposer, 2, [*tokens, 11, 12], 8, GREEDY, states))
    log_probs = torch.log_softmax(proposer._head.logits(0, states[6:7].float())[0].double(), 0)
    first = [tree.log_probs[node] for node in tree.children(-1)]
    np.testing.assert_allclose(sorted(first), log_probs.topk(len(first)).values.tolist()[::-1], atol=1e-5)


def test_requests_share_a_pass(tmp_path):
    proposer = served(tmp_path, argument=":topk=16:num_draft_tokens=64")
    rules = [GREEDY, Sampling(seed=3), Sampling(seed=4, repetition_penalty=1.5), Sampling(seed=5, top_k=2)]
    states = torch.randn(4, 2, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    for number, (sampling, state) in enumerate(zip(rules, states, strict=True)):
        proposer.open(number, Opening([5, 6, 7], 2, sampling))
        proposer.take_features(number, 0, state)
    together = proposer.propose([DraftRequest(number, 64, 63) for number in range(4)])
    alone = [proposer.propose([DraftRequest(number, 64, 63)])[0] for number in range(4)]
    for one, other in zip(together, alone, strict=True):
        assert (one.token_ids, one.parents) == (other.token_ids, other.parents)
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)
    assert [len(tree) for tree in together] == [63, 63, 63, 2 + 4 + 8]
    limits = [DraftRequest(0, 4, 63), DraftRequest(1, 64, 1)]
    assert [len(tree) for tree in proposer.propose(limits)] == [3, 16]


@pytest.mark.parametrize("layout", ["vLLM", "vLLM, map"])
def test_drafted_tokens_are_those_that_are_scored(layout, tmp_path):
    ids = [7, 3, 90]
    torch.save(ids, tmp_path / "freq.pt")
    mapped = layout != "vLLM"
    proposer = served(
        tmp_path, layout, f":topk=16:num_draft_tokens=64{'' if mapped else f':token_map={tmp_path}/freq.pt'}"
    )
    if mapped:
        ids = write_medusa(tmp_path / "heads", LAYOUTS[layout]).ids.tolist()
    tree = tree_of(proposer, 1, [1, 2, 3], 3, Sampling(seed=4), torch.randn(2, 32))
    assert set(tree.token_ids) <= set(ids)
    assert len(tree) == (63 if mapped else 3 + 9 + 27)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target(96, NO_TOKENIZER, 512, hidden_size=64, num_layers=12), "64"),
        (Target(96, "other", 512, hidden_size=32, num_layers=12), "tokenizer"),
    ],
)
def test_targets_that_do_not_fit(target, message, tmp_path):
    proposer = served(tmp_path)
    with pytest.raises(FailedPreconditionError, match=message):
        proposer.bind(target)


def test_refusals(tmp_path):
    proposer = served(tmp_path)
    with pytest.raises(SessionRefusedError, match="vocabulary"):
        proposer.open(1, Opening([96], 1))
    proposer.open(2, Opening([0], 1))
    with pytest.raises(ValueError, match="96"):
        proposer.commit(2, [96])
    proposer = served(tmp_path, argument=":boundaries=9")
    assert proposer.feature_boundaries == (9,)
    with pytest.raises(FailedPreconditionError, match="boundaries are 14, must be one of 0 to 13"):
        served(tmp_path, argument=":boundaries=14")
    for argument, message in (
        ("", "needs a folder"),
        (f"{tmp_path}/none", "no such folder"),
        (f"{tmp_path}/heads:max_depth=64", "max_depth"),
        (f"{tmp_path}/heads:boundaries=1-2", "one number"),
        (f"{tmp_path}/heads:num_draft_tokens=65", "max_nodes"),
        (f"{tmp_path}/target", "expected Medusa"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            create(ProposerOptions("p", argument))
