"""Medusa heads and MLP speculators by captured graphs against the proposers on the CPU, which round alike."""

import pytest
import torch

from draft_service.heads.eagle import Vocabulary
from draft_service.heads.medusa import MedusaHead, MedusaHeads
from draft_service.heads.mlp_speculator import MlpSpeculator, Stage
from draft_service.proposers.base import DraftRequest, Opening, ProposerOptions, Sampling, Target
from draft_service.proposers.last_hidden_state import medusa as medusa_proposer
from draft_service.proposers.last_hidden_state import mlp_speculator as mlp_speculator_proposer
from draft_service.proposers.last_hidden_state.base import LastHiddenStateConfig
from draft_service.proposers.last_hidden_state.gpu import GpuLastHiddenStateProposer
from draft_service.proposers.last_hidden_state.medusa import MedusaProposer
from draft_service.proposers.last_hidden_state.mlp_speculator import MlpSpeculatorProposer
from support.medusa_heads import LAYOUTS as MEDUSA
from support.medusa_heads import write_medusa
from support.mlp_speculators import LAYOUTS as SPECULATORS
from support.mlp_speculators import write_speculator
from support.recurrent_target import paths
from support.rounded_heads import as_on_a_gpu

HIDDEN, INNER, VOCAB = 384, 256, 4096
GREEDY = [Sampling(temperature=0.0), Sampling(temperature=0.0, logit_bias={5: 3.0, 90: -4.0})]
SAMPLED = [Sampling(temperature=1.0, seed=11), Sampling(temperature=0.7, seed=2**40, choice=2)]
FILTERED = [*SAMPLED, Sampling(temperature=0.7, seed=5, top_k=40, top_p=0.9), Sampling(temperature=1.0, min_p=0.02)]
PENALISED = [
    Sampling(temperature=1.0, seed=3, presence_penalty=0.5, repetition_penalty=1.2),
    Sampling(temperature=0.0, frequency_penalty=1.0),
    Sampling(temperature=0.8, seed=8, min_tokens=40, stop_token_ids=(7, 9, 11)),
]


def normal(generator, *size, scale=1.0):
    return torch.randn(size, generator=generator) * scale / size[-1] ** 0.5


def medusa(mapped):
    """Four heads of two layers, of a token map or with rows that all share."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randperm(VOCAB, generator=generator)[:2048] if mapped else None
    shared = normal(generator, VOCAB, HIDDEN, scale=3.0)
    heads = []
    for _ in range(4):
        layers = [(normal(generator, HIDDEN, HIDDEN), torch.randn(HIDDEN, generator=generator)) for _ in range(2)]
        heads.append(MedusaHead(layers, normal(generator, 2048, HIDDEN, scale=3.0) if mapped else shared))
    return MedusaHeads(heads, ids, VOCAB, 0.7)


def speculator(mapped):
    """Three stages, of a token map; or behind the first one shared, with states that are normalised."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randperm(VOCAB, generator=generator)[:2048] if mapped else None
    stages = []
    for stage in range(3 if mapped else 2):
        rows = normal(generator, 2048 if mapped else VOCAB, INNER, scale=3.0)
        vocabulary = Vocabulary(torch.randn(VOCAB, INNER, generator=generator), rows, ids, VOCAB)
        scale, shift = 1 + torch.randn(INNER, generator=generator) / 8, torch.randn(INNER, generator=generator) / 4
        stages.append(Stage(normal(generator, INNER, INNER if stage else HIDDEN), scale, shift, vocabulary))
    return MlpSpeculator(stages if mapped else [*stages, stages[1]], scale_input=not mapped)


def rounds(proposer, samplings, device):
    """The trees of two rounds, the second after some tokens more. Every other state comes on the device."""
    generator = torch.Generator().manual_seed(3)
    requests, trees = [], []
    texts = torch.randint(VOCAB, (len(samplings), 20), generator=generator).tolist()
    states = torch.randn(len(samplings), 20, HIDDEN, generator=generator).bfloat16()
    for number, (sampling, text) in enumerate(zip(samplings, texts, strict=True)):
        proposer.open(number, Opening(text[:12], 3, sampling))
        proposer.take_features(number, 0, states[number, :11].to(device if number % 2 else "cpu"))
        requests.append(DraftRequest(number, 24 if number else 64, 4 - number % 3))
    trees += proposer.propose(requests)
    for number, text in enumerate(texts):
        proposer.commit(number, text[12:15])
        proposer.take_features(number, 11, states[number, 11:14].to("cpu" if number % 2 else device))
    trees += proposer.propose(requests[::-1])
    for number in range(len(samplings)):
        proposer.close(number)
    return trees


@pytest.fixture(scope="module", params=[True, False], ids=["mapped", "whole"])
def mapped(request):
    return request.param


@pytest.fixture(scope="module", params=[medusa, speculator])
def both(request, mapped, device):
    """The proposers of one head, on the CPU and on the device."""
    head = as_on_a_gpu(request.param(mapped))
    config = LastHiddenStateConfig(top_k=10 if mapped else 4, max_nodes=64, max_sessions=17)
    on_cpu = (MedusaProposer if request.param is medusa else MlpSpeculatorProposer)("p", head, config)
    return on_cpu, GpuLastHiddenStateProposer("p", head, config, device)


@pytest.fixture(scope="module")
def device():
    return "cuda:0"


@pytest.mark.gpu
@pytest.mark.parametrize("sessions", [1, 17])
@pytest.mark.parametrize(
    "samplings", [GREEDY, SAMPLED, FILTERED, PENALISED], ids=["T=0", "T>0", "filters", "penalties"]
)
def test_graphs_draft_what_the_cpu_drafts(both, samplings, sessions, device):
    on_cpu, on_gpu = both
    on_cpu.expanded = None if samplings is PENALISED else type(on_cpu).expanded
    chosen = [samplings[number % len(samplings)] for number in range(sessions)]
    wanted, got = rounds(on_cpu, chosen, "cpu"), rounds(on_gpu, chosen, device)
    alike = total = 0
    for one, other in zip(wanted, got, strict=True):
        one, other = paths(one), paths(other)
        total += max(len(one), len(other))
        alike += len(one.keys() & other.keys())
        assert all(abs(one[path] - other[path]) < 0.05 for path in one.keys() & other.keys())
    print(f"{alike} of {total} nodes alike")
    assert alike >= 0.98 * total


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["medusa", "speculator"])
def test_folders_are_drafted_with_on_the_device_that_is_named(family, tmp_path, caplog, device):
    if family == "medusa":
        write_medusa(tmp_path, MEDUSA["vLLM"], hidden=64, hidden_size=64)
        create = medusa_proposer.create
    else:
        write_speculator(tmp_path, SPECULATORS["nothing shared, as large as the target"], width=64)
        create = mlp_speculator_proposer.create
    proposer = create(ProposerOptions("p", f"{tmp_path}:max_sessions=2", device=device))
    assert isinstance(proposer, GpuLastHiddenStateProposer) and proposer.state_device == device
    assert "drafts on the CPU" not in caplog.text
    for vocabulary in (96, 40):
        proposer.bind(Target(vocabulary, "", 512, hidden_size=64, num_layers=12))
        proposer.open(1, Opening([1, 2, 3], 2, Sampling(temperature=1.0)))
        proposer.take_features(1, 0, torch.randn(2, 64).bfloat16().to(device))
        (tree,) = proposer.propose([DraftRequest(1, 64, 63)])
        assert len(tree) == 7 and max(tree.token_ids) < vocabulary
        proposer.close(1)
    proposer.shut_down()
