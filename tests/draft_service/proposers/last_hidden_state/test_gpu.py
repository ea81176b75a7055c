"""Rounds of Medusa heads and MLP speculators, by the kernels' twins, against the proposers on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draft_service.heads.medusa import MedusaHead, MedusaHeads
from draft_service.heads.medusa_loading import load_medusa
from draft_service.heads.mlp_speculator_loading import load_mlp_speculator
from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling, SessionRefusedError, Target
from draft_service.proposers.gpu_common.supported_shapes import NoGpuFormError
from draft_service.proposers.last_hidden_state import medusa
from draft_service.proposers.last_hidden_state.base import LastHiddenStateConfig
from draft_service.proposers.last_hidden_state.gpu import GpuLastHiddenStateProposer
from draft_service.proposers.last_hidden_state.gpu_weights import state_weights
from draft_service.proposers.last_hidden_state.medusa import MedusaProposer
from draft_service.proposers.last_hidden_state.mlp_speculator import MlpSpeculatorProposer
from support.eagle_heads import write_target
from support.medusa_heads import LAYOUTS as MEDUSA
from support.medusa_heads import write_medusa
from support.mlp_speculators import LAYOUTS as SPECULATORS
from support.mlp_speculators import write_speculator
from support.rounded_heads import as_on_a_gpu

SCALED = replace(MEDUSA["vLLM, two layers"], config=MEDUSA["vLLM, two layers"].config | {"logit_scale": 0.7})
LAYOUTS = {
    "medusa: biases": MEDUSA["the original, of whose heads the config knows two"],
    "medusa: rows of the target": MEDUSA["TGI, rows of the target"],
    "medusa: two layers, scaled": SCALED,
    "medusa: map": MEDUSA["vLLM, map"],
    "speculator: nothing shared": SPECULATORS["nothing shared"],
    "speculator: tied, input scaled": SPECULATORS["tied, input scaled"],
}
"""Those that differ in what is computed."""
MAPPED = "speculator: map"
PLAIN = [
    Sampling(temperature=0.0),
    Sampling(temperature=1.0, seed=11),
    Sampling(temperature=0.0, logit_bias={5: 3.0, 90: -4.0}),
    Sampling(temperature=0.8, seed=8, min_tokens=40, stop_token_ids=(7, 9, 11)),
]
FILTERED = Sampling(temperature=0.7, seed=5, choice=2, top_k=20, top_p=0.9)
PENALISED = [
    Sampling(temperature=1.0, seed=3, min_p=0.1, presence_penalty=0.5, repetition_penalty=1.2),
    Sampling(temperature=0.0, frequency_penalty=1.0),
]
ROUNDS = {"plain": PLAIN, "filtered": [*PLAIN, FILTERED], "penalised": [FILTERED, *PENALISED]}


def loaded(folder, name):
    layout = LAYOUTS.get(name, SPECULATORS["one head"])
    write_target(folder / "target")
    if name.startswith("medusa"):
        write_medusa(folder / "heads", layout, seed=2)
        return load_medusa(folder / "heads", folder / "target")
    write_speculator(folder / "heads", layout, seed=2)
    torch.save([90, 3, 7, 20, 21, 22, 50, 40, 41, 95, 11], folder / "freq.pt")
    return load_mlp_speculator(folder / "heads", None, folder / "freq.pt" if name == MAPPED else None)


def proposers(folder, name, **config):
    """The same weights, rounded alike, on the CPU and in a GPU's rounds."""
    head = as_on_a_gpu(loaded(folder, name))
    settings = LastHiddenStateConfig(**config)
    kind = MedusaProposer if isinstance(head, MedusaHeads) else MlpSpeculatorProposer
    return kind("p", head, settings), GpuLastHiddenStateProposer("p", head, settings, "cpu")


def check_same(ours, others, strict=True):
    """Sums in another order may change a rounding, and so a logit by little."""
    for one, other in zip(ours, others, strict=strict):
        assert (one.token_ids, one.parents) == (other.token_ids, other.parents)
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=0.02)


def opened(proposer, samplings, length=9):
    """Requests for all of them, of different lengths and limits, some of whose text came after they were opened."""
    requests = []
    generator = torch.Generator().manual_seed(4)
    for number, sampling in enumerate(samplings, 1):
        tokens = torch.randint(96, (length + number + 2,), generator=generator).tolist()
        states = torch.randn(len(tokens), 32, generator=generator).bfloat16()
        proposer.open(number, Opening(tokens[:length], 3, sampling))
        proposer.take_features(number, 0, states[: length - 1])
        proposer.commit(number, tokens[length:])
        proposer.take_features(number, length - 1, states[length - 1 : -1])
        requests.append(DraftRequest(number, 14 - number % 6, 4 - number % 8 // 4))
    return requests


@pytest.mark.parametrize("name", [*LAYOUTS, MAPPED])
def test_sessions_of_one_round_draft_as_alone_and_as_on_the_cpu(name, tmp_path):
    on_cpu, on_gpu = proposers(tmp_path, name, top_k=4, max_nodes=12, max_sessions=5)
    for samplings in ROUNDS.values():
        if samplings is ROUNDS["penalised"]:
            on_cpu.expanded = None
        requests = opened(on_cpu, samplings)
        assert opened(on_gpu, samplings) == requests
        trees = on_gpu.propose(requests)
        check_same(trees, on_cpu.propose(requests))
        alone = requests if samplings is PLAIN else requests[:1]
        check_same(trees, [on_gpu.propose([request])[0] for request in alone], strict=False)
        for tree, request in zip(trees, requests, strict=True):
            assert len(tree) <= request.max_nodes - 1 and tree.depth <= request.max_depth
            on_cpu.close(request.session)
            on_gpu.close(request.session)
        assert max(map(len, trees)) > 8


def test_more_sessions_than_a_round_takes_share_several(tmp_path):
    on_cpu, on_gpu = proposers(tmp_path, "medusa: map", top_k=10, max_nodes=64, max_sessions=66)
    requests = opened(on_cpu, [PLAIN[0]] * 66)
    check_same(on_gpu.propose(opened(on_gpu, [PLAIN[0]] * 66)), on_cpu.propose(requests))


def test_the_newest_state_is_all_it_takes(tmp_path):
    _, proposer = proposers(tmp_path, "speculator: nothing shared", max_sessions=2)
    proposer.bind(Target(96, "", 512, hidden_size=32, num_layers=12))
    assert (proposer.feature_boundaries, proposer.state_device) == ((13,), "cpu")
    states = torch.randn(9, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    proposer.open(1, Opening([5, 6, 7, 8], 4, Sampling(temperature=0.0), cached_length=3))
    assert proposer.propose([DraftRequest(1, 64, 63)]) == [None]
    proposer.commit(1, [11, 12])
    proposer.take_features(1, 3, states[:1])
    assert proposer.propose([DraftRequest(1, 64, 63)]) == [None]
    proposer.take_features(1, 4, states[1:2])
    proposer.open(2, Opening([9, 12], 1, Sampling(temperature=0.0)))
    proposer.take_features(2, 0, states[1:2])
    one, other = proposer.propose([DraftRequest(1, 64, 63), DraftRequest(2, 64, 63)])
    assert len(one) == 7 and one == other
    with pytest.raises(SessionRefusedError, match="2 other requests"):
        proposer.open(3, Opening([9, 12], 1))
    proposer.close(1)
    proposer.open(3, Opening([9, 12], 1, Sampling(temperature=0.0)))
    proposer.take_features(3, 0, states[1:2])
    assert proposer.propose([DraftRequest(3, 64, 63)]) == [other]


@pytest.mark.parametrize("name", ["medusa: biases", "medusa: map", MAPPED])
def test_ids_that_the_target_has_not_are_not_drafted(name, tmp_path):
    _, proposer = proposers(tmp_path, name, top_k=4, max_nodes=20)
    proposer.bind(Target(40, "", 512, hidden_size=32, num_layers=12))
    proposer.open(1, Opening([1, 2, 3], 2, Sampling(temperature=1.0)))
    proposer.take_features(1, 0, torch.randn(2, 32).bfloat16())
    (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
    assert len(tree) == 19 and max(tree.token_ids) < 40


def test_what_only_the_cpu_can_draft_with_stays_there(tmp_path, caplog):
    write_medusa(tmp_path / "heads", MEDUSA["vLLM"], hidden=24, hidden_size=24)
    proposer = medusa.create(ProposerOptions("p", str(tmp_path / "heads"), device="cuda:0"))
    assert isinstance(proposer, MedusaProposer)
    assert "p drafts on the CPU: hidden_size is 24; a GPU takes multiples of 16" in caplog.text
    many = MedusaHeads([MedusaHead([], torch.zeros(4, 32))] * 20, None, 4)
    with pytest.raises(NoGpuFormError, match="20 heads"):
        state_weights(many, 20, torch.device("cpu"))
