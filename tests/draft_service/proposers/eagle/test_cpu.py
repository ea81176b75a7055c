"""EAGLE proposers: what they make of states as they come, and trees of a head that knows the target."""

from hashlib import sha256

import numpy as np
import pytest
import torch

from draft_service.heads.config import HeadConfig
from draft_service.heads.eagle import Eagle1, HeadRows, Vocabulary
from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling, SessionRefusedError, Target
from draft_service.proposers.eagle import cpu as eagle
from draft_service.proposers.eagle import eagle3
from draft_service.proposers.eagle.cpu import EagleConfig, EagleProposer
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from slipstream_kernels.ops.rope import Rope
from support.eagle_heads import EAGLE1, EAGLE3, Shape, write_head, write_target
from support.published_eagle import published
from support.recurrent_target import VOCAB, WIDTH, RecurrentTarget, eagle2_tree, paths

GREEDY = Sampling(temperature=0.0)
NO_TOKENIZER = sha256().hexdigest()
TARGET = Target(vocab_size=96, tokenizer_fingerprint=NO_TOKENIZER, max_context=512, hidden_size=32, num_layers=12)


def proposer_of(tmp_path, layout=EAGLE3["midlayer, offsets and mask"], argument="", **config):
    """A proposer of that layout, made as the command line makes it."""
    write_head(tmp_path / "head", layout, seed=2, **config)
    write_target(tmp_path / "target")
    family = eagle if layout.family == "eagle" else eagle3
    return family.create(ProposerOptions("p", f"{tmp_path / 'head'}:{argument}"))


class Oracle(Eagle1):
    """A head whose row of state i and token i + 1 leaves the target's own state i + 1."""

    def __init__(self, target):
        config = HeadConfig(
            hidden_size=WIDTH, intermediate_size=1, num_layers=0, num_heads=1, num_kv_heads=1, head_dim=2,
            rms_norm_eps=1e-5, rope=Rope(1e4), vocab_size=VOCAB, target_hidden_size=WIDTH,
            boundaries=(), norm_before_residual=False, norm_before_fc=False, fc_norm=False, norm_output=False,
            tie_word_embeddings=False, speculators=False, eos_token_ids=(),
        )  # fmt: skip
        super().__init__(config, {}, Vocabulary(target.embedding, target.head, None, VOCAB))
        self.target = target

    def forward(self, rows: HeadRows):
        return self.target.step(rows.states, rows.token_ids)


@pytest.mark.parametrize(("depth", "k", "total"), [(3, 2, 6), (4, 3, 20), (5, 8, 64), (4, 1, 5)])
def test_tree_of_the_targets_own_distribution_is_the_published_one(depth, k, total):
    target = RecurrentTarget()
    proposer = EagleProposer("p", Oracle(target), EagleConfig(depth, k, total))
    tokens = [3, 1, 4, 1, 5]
    proposer.open(1, Opening(tokens, 3, GREEDY))
    proposer.take_features(1, 0, target.states(tokens)[:-1].bfloat16())
    (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
    wanted = eagle2_tree(target, tokens, depth, k, total)
    got = paths(tree)
    assert got.keys() == wanted.keys()
    assert max(abs(got[path] - wanted[path]) for path in wanted) < 1e-4
    assert tuple(target.text(tokens, 1, GREEDY)[-1:]) in got


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=1.0, seed=11), Sampling(temperature=0.6, seed=5)])
def test_every_draft_of_a_head_that_knows_the_target_is_accepted(sampling):
    target, depth = RecurrentTarget(1), 4
    text = target.text([2, 7, 1], 60, sampling)
    proposer = EagleProposer("p", Oracle(target), EagleConfig(depth, 1, depth + 1))
    states = target.states(text).bfloat16()
    proposer.open(1, Opening(text[:4], 3, sampling))
    proposer.take_features(1, 0, states[:3])
    length = 4
    while length + depth + 1 < len(text):
        (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
        assert tree.token_ids == tuple(text[length : length + depth])
        # What the target decides here is cut at times, so that drafted rows are given up.
        taken = 1 + length % (depth + 1)
        proposer.commit(1, text[length : length + taken])
        proposer.take_features(1, length - 1, states[length - 1 : length - 1 + taken])
        length += taken


def test_wide_trees_at_high_temperature_hold_the_targets_samples():
    target, sampling = RecurrentTarget(2), Sampling(temperature=1.0, seed=3)
    text = target.text([2, 7, 1], 50, sampling)
    proposer = EagleProposer("p", Oracle(target), EagleConfig(4, 3, 12))
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


def fed(proposer, number, tokens, states, sampling=GREEDY):
    proposer.open(number, Opening(tokens, 2, sampling))
    proposer.take_features(number, 0, states[: len(tokens) - 1])


def same(one, other):
    assert (one.token_ids, one.parents) == (other.token_ids, other.parents)
    np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)


@pytest.mark.parametrize("layout", ["midlayer, offsets and mask", "EAGLE-3.1"])
def test_text_is_computed_from_target_states_however_it_came(layout, tmp_path):
    proposer = proposer_of(tmp_path, EAGLE3[layout], f"target={tmp_path / 'target'}:chunk=4:topk=3:num_draft_tokens=12")
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(96, (30,), generator=generator).tolist()
    states = torch.randn(30, 96, generator=generator).bfloat16()
    proposer.bind(TARGET)
    assert proposer.feature_boundaries == (2, 6, 9)
    assert {(1, 1), (1, proposer.max_depth)} <= {(cost.requests, cost.levels) for cost in proposer.round_costs}

    fed(proposer, 1, tokens[:9], states)
    assert proposer.propose([DraftRequest(1, 64, 63)]) == [None]  # more rows than a chunk
    while proposer.advance():
        pass
    assert proposer.propose([DraftRequest(1, 64, 63)])[0] is not None
    for begin, end in ((9, 12), (12, 13), (13, 17)):
        proposer.commit(1, tokens[begin:end])
        assert proposer.propose([DraftRequest(1, 64, 63)]) == [None]  # their states are not there
        proposer.take_features(1, begin - 1, states[begin - 1 : end - 1])
        (step,) = proposer.propose([DraftRequest(1, 64, 63)])
        fed(proposer, end * 10, tokens[:end], states)
        while proposer.advance():
            pass
        (whole,) = proposer.propose([DraftRequest(end * 10, 64, 63)])
        same(step, whole)
        assert len(step) == 11

    others = [proposer.propose([DraftRequest(n, 64, 63)])[0] for n in (1, 120, 130)]
    for one, other in zip(others, proposer.propose([DraftRequest(n, 64, 63) for n in (1, 120, 130)]), strict=True):
        same(one, other)
    assert [len(t) for t in proposer.propose([DraftRequest(1, 4, 63), DraftRequest(130, 64, 1)])] == [3, 3]


@pytest.mark.parametrize("layout", [EAGLE1["two layers"], EAGLE3["midlayer, offsets and mask"], EAGLE3["EAGLE-3.1"]])
@pytest.mark.parametrize("begin", [0, 2])
def test_log_probs_of_a_tree_are_the_published_heads(layout, begin, tmp_path):
    proposer = proposer_of(tmp_path, layout, f"target={tmp_path / 'target'}:num_steps=4:topk=3:num_draft_tokens=40")
    tensors = write_head(tmp_path / "head", layout, seed=2)
    reference = published(layout, tensors, write_target(tmp_path / "target"), Shape())
    tokens = [5, 60, 7, 81, 9, 33]
    width = 32 * (layout.states if layout.family == "eagle3" else 1)
    states = torch.randn(5, width, generator=torch.Generator().manual_seed(8)).bfloat16()
    proposer.open(1, Opening(tokens, 3, GREEDY, cached_length=begin))
    proposer.take_features(1, begin, states[begin:])
    (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
    logits = []
    for row in range(begin, 5):
        fused = reference.fuse(list(states[row].double().split(32)))
        logits.append(reference.row(tokens[row + 1], fused, row, list(range(row - begin))))
    text = 5 - begin
    found = {-1: 0.0}
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        found[node] = found[parent] + float(torch.log_softmax(logits[text + parent], 0)[token])
        ancestors, each = [], parent
        while each >= 0:
            ancestors.append(text + each)
            each = tree.parents[each]
        state = reference.rows[text + parent][1]
        logits.append(reference.row(token, state, 5 + len(ancestors), [*range(text), *ancestors]))
    assert max(map(len, paths(tree))) == 4
    np.testing.assert_allclose(tree.log_probs, [found[node] for node in range(len(tree))], atol=1e-4)


def test_drafted_tokens_are_those_the_head_scores(tmp_path):
    tensors = write_head(tmp_path / "head", EAGLE3["offsets alone"], seed=2)
    scored = {entry + int(offset) for entry, offset in enumerate(tensors["d2t"])}
    proposer = proposer_of(
        tmp_path, EAGLE3["offsets alone"], f"target={tmp_path / 'target'}:topk=16:num_draft_tokens=64"
    )
    for number, sampling in enumerate(
        (GREEDY, Sampling(seed=4), Sampling(seed=4, top_p=0.9, repetition_penalty=1.3)), 1
    ):
        fed(proposer, number, [1, 2, 3], torch.randn(3, 96).bfloat16(), sampling)
        (tree,) = proposer.propose([DraftRequest(number, 64, 63)])
        assert len(tree) > 20
        assert set(tree.token_ids) <= scored


def test_begins_after_states_that_are_gone(tmp_path):
    proposer = proposer_of(tmp_path, argument=f"target={tmp_path / 'target'}")
    proposer.open(1, Opening([5, 6, 7, 8], 2, GREEDY, cached_length=2))
    proposer.take_features(1, 2, torch.randn(1, 96).bfloat16())
    assert proposer.propose([DraftRequest(1, 64, 63)])[0] is not None
    proposer.open(2, Opening([5, 6], 2, GREEDY, cached_length=1))
    assert proposer.propose([DraftRequest(2, 64, 63)]) == [None]
    proposer.commit(2, [9])
    proposer.take_features(2, 1, torch.randn(1, 96).bfloat16())
    assert proposer.propose([DraftRequest(2, 64, 63)])[0] is not None


def test_eagle1_reads_the_state_behind_the_final_norm(tmp_path):
    proposer = proposer_of(tmp_path, EAGLE1["no bias"], f"target={tmp_path / 'target'}")
    proposer.bind(TARGET)
    assert proposer.feature_boundaries == (13,)
    fed(proposer, 1, [1, 2, 3], torch.randn(3, 32).bfloat16())
    assert len(proposer.propose([DraftRequest(1, 64, 63)])[0]) == 7


@pytest.mark.parametrize(
    ("config", "argument", "wanted"),
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}}, "", (2, 6, 9)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 6, 12]}}, "", (4, 6, 12)),
        ({"eagle_aux_hidden_state_layer_ids": [3, 5, 8]}, "", (3, 5, 8)),
        ({"eagle_aux_hidden_state_layer_ids": [3, 5, 8]}, ":boundaries=1-2-7", (1, 2, 7)),
    ],
)
def test_boundaries(config, argument, wanted, tmp_path):
    proposer = proposer_of(tmp_path, argument=f"target={tmp_path / 'target'}{argument}", **config)
    proposer.bind(TARGET)
    assert proposer.feature_boundaries == wanted


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target(96, NO_TOKENIZER, 512, hidden_size=64, num_layers=12), "64"),
        (Target(96, NO_TOKENIZER, 512, hidden_size=32, num_layers=5), "name them"),
        (Target(96, "other", 512, hidden_size=32, num_layers=12), "tokenizer"),
    ],
)
def test_targets_that_do_not_fit(target, message, tmp_path):
    proposer = proposer_of(tmp_path, argument=f"target={tmp_path / 'target'}")
    with pytest.raises(FailedPreconditionError, match=message):
        proposer.bind(target)


def test_refusals(tmp_path):
    proposer = proposer_of(tmp_path, argument=f"target={tmp_path / 'target'}:max_tokens=10")
    with pytest.raises(SessionRefusedError, match="vocabulary"):
        proposer.open(1, Opening([96], 1))
    proposer.open(2, Opening([0] * 6, 1))
    with pytest.raises(SessionRefusedError, match="room"):
        proposer.open(3, Opening([0] * 6, 1))
    proposer.close(2)
    proposer.open(3, Opening([0] * 6, 1))
    with pytest.raises(ValueError, match="96"):
        proposer.commit(3, [96])
    for argument, message in (
        ("", "needs a folder"),
        (f"{tmp_path}/none", "no such folder"),
        (f"{tmp_path}/head:boundaries=2,4", "boundaries"),
        (f"{tmp_path}/head:topk=17", "top_k"),
        (f"{tmp_path}/head", "embed_tokens"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            eagle3.create(ProposerOptions("p", argument))
    with pytest.raises(InvalidArgumentError, match="eagle3 head"):
        eagle.create(ProposerOptions("p", f"{tmp_path}/head:target={tmp_path}/target"))
