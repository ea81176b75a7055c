"""MTP layers as proposers: where they read, what the operator may choose, and layers that know their target."""

import json
from hashlib import sha256

import numpy as np
import pytest
import torch

from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling, Target
from draft_service.proposers.eagle import mtp
from slipstream.rpc.errors import FailedPreconditionError, InvalidArgumentError
from support.eagle_heads import write_target
from support.mtp_heads import LAYOUTS, write_mtp
from support.published_mtp import published_layers

GREEDY = Sampling(temperature=0.0)
TARGET = Target(96, sha256().hexdigest(), max_context=512, hidden_size=32, num_layers=12)


def made(argument, **options):
    return mtp.create(ProposerOptions("p", str(argument), **options))


@pytest.fixture
def model(tmp_path):
    """A target with MiMo's layer."""
    write_target(tmp_path / "model")
    write_mtp(tmp_path / "model", LAYOUTS["MiMo"], seed=2)
    return tmp_path / "model"


def test_layers_inside_the_target_need_no_other_folder(model):
    proposer = made(model)
    proposer.bind(TARGET)
    assert proposer.feature_boundaries == (13,)
    assert (proposer.max_depth, proposer.max_nodes, proposer.vocab_size) == (3, 4, 96)
    with pytest.raises(FailedPreconditionError, match="tokenizer"):
        proposer.bind(Target(96, "other", 512, hidden_size=32, num_layers=12))


def test_parameters(model):
    proposer = made(f"{model}:num_speculative_tokens=2")
    assert (proposer.max_depth, proposer.max_nodes) == (2, 3)
    proposer = made(f"{model}:num_steps=4:topk=2:num_draft_tokens=9:boundaries=12:feedback=pre-norm")
    assert (proposer.max_depth, proposer.max_nodes, proposer.config.top_k) == (4, 9, 2)
    proposer.bind(TARGET)
    assert proposer.feature_boundaries == (12,)
    assert made(model, top_k=2).config.top_k == 2
    for argument, message in (("feedback=never", "feedback"), ("num_steps=64", "max_depth"), ("layers=2", "KEY=VALUE")):
        with pytest.raises(InvalidArgumentError, match=message):
            made(f"{model}:{argument}")


@pytest.mark.parametrize("name", ["MiMo", "NextN, three layers"])
def test_log_probs_of_a_tree_are_the_published_layers(name, tmp_path):
    """Of all nodes that no layer scores twice, by each layer's own pass over text and path."""
    target = write_target(tmp_path / "model")
    tensors = write_mtp(tmp_path / "model", LAYOUTS[name], seed=3)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    proposer = made(f"{tmp_path / 'model'}:num_steps={len(tensors)}:topk=3:num_draft_tokens=12")
    tokens, states = [5, 60, 7, 81, 9, 33], torch.randn(5, 32, generator=torch.Generator().manual_seed(8)).bfloat16()
    proposer.open(1, Opening(tokens, 3, GREEDY))
    proposer.take_features(1, 0, states)
    (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
    found = {(): 0.0}
    paths = {-1: ()}
    for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        paths[node] = (*paths[parent], token)
        layers = published_layers(LAYOUTS[name], tensors, config, target)
        text = [*tokens, *paths[parent]]
        for index, layer in enumerate(layers[: len(paths[node])]):
            before = [row[1] for row in layers[index - 1].rows] if index else list(states.double())
            logits = [layer.row(text[row + index + 1], before[row], row, list(range(row))) for row in range(5)]
        found[paths[node]] = found[paths[parent]] + float(torch.log_softmax(logits[-1], 0)[token])
    assert max(map(len, paths.values())) == len(tensors)
    np.testing.assert_allclose(tree.log_probs, [found[paths[node]] for node in range(len(tree))], atol=1e-4)
