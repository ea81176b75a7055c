"""Scores of MLP speculators in every layout are those of the published computation; what does not fit is refused."""

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service.heads.loading import load_eagle
from draft_service.heads.mlp_speculator_loading import load_mlp_speculator
from slipstream.speculation.checkpoint_names import method_of
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from support.eagle_heads import EAGLE1, write_head, write_target
from support.medusa_heads import LAYOUTS as MEDUSA
from support.medusa_heads import write_medusa
from support.mlp_speculators import LAYOUTS, write_speculator


def published(made, stages, state, tokens, *, scaled):
    """Logits of all stages along one chain of tokens, from the target's state, as trained: both inputs weighted."""
    inner = len(made["ln.{}.weight"][0])
    state_weight = 0.5 ** (0.5 / stages)
    embedding_weight = math.sqrt(1 - state_weight**2) * math.sqrt(inner / 2)

    def norm(x):
        return x / torch.sqrt((x * x).mean() + 1e-6)

    state = state.double()
    if scaled:
        state = norm(state) / math.sqrt(2)
    logits = []
    for stage in range(stages):
        emb, proj, scale, shift, head = (made[name][stage].double() for name in made)
        state = state_weight * (proj @ state) + embedding_weight * emb[tokens[stage]]
        state = norm(state) * scale + shift
        state = 0.5 * state * (1 + torch.erf(state / math.sqrt(2)))
        logits.append(head @ state)
    return logits


@pytest.mark.parametrize("name", LAYOUTS)
def test_logits(name, tmp_path):
    layout = LAYOUTS[name]
    made = write_speculator(tmp_path, layout, stages=4, seed=6)
    head = load_mlp_speculator(tmp_path)
    assert method_of(tmp_path) == "mlp-speculator"
    assert (len(head), head.hidden_size, head.target_size, head.entries) == (4, 32, 96, 96)
    generator = torch.Generator().manual_seed(1)
    states, tokens = torch.randn(5, 32, generator=generator), torch.randint(96, (4, 5), generator=generator)
    chains = [
        published(made, 4, state, row, scaled=layout.config.get("scale_input"))
        for state, row in zip(states, tokens.T, strict=True)
    ]
    for stage in range(4):
        states = head.forward(stage, states, tokens[stage])
        wanted = torch.stack([chain[stage] for chain in chains])
        torch.testing.assert_close(head.logits(stage, states).double(), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", ["nothing shared", "tied, with copies"])
def test_token_map(layout, tmp_path):
    made = write_speculator(tmp_path / "mlp", LAYOUTS[layout])
    ids = [7, 3, 90]
    torch.save(ids, tmp_path / "freq.pt")
    head = load_mlp_speculator(tmp_path / "mlp", map_file=tmp_path / "freq.pt")
    assert head.entries == 3
    state, tokens = torch.randn(1, 32), torch.tensor([95, 4])
    second = head.forward(1, head.forward(0, state, tokens[:1]), tokens[1:])
    wanted = published(made, 3, state[0], [*tokens.tolist(), 0], scaled=False)[1]
    logits = head.logits(1, second)[0]
    torch.testing.assert_close(logits[ids].double(), wanted[ids], atol=1e-4, rtol=0)
    assert int(torch.isfinite(logits).sum()) == 3


def change(folder, put=(), drop=(), **config):
    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if name not in drop} | dict(put)
    save_file(tensors, path)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | config))


@pytest.mark.parametrize(
    ("layout", "put", "drop", "config", "message"),
    [
        ("nothing shared", {}, ["speculator.emb.1.weight"], {}, "missing: emb.1.weight"),
        ("nothing shared", {}, ["speculator.ln.2.bias"], {}, "missing: ln.2.bias"),
        ("nothing shared", {}, [], {"n_predict": 4}, "missing: emb.3.weight, head.3.weight, ln.3.bias"),
        ("nothing shared", {}, [], {"n_predict": 2}, "unexpected tensor emb.2.weight"),
        ("nothing shared", {}, [], {"tie_weights": True}, "emb.1.weight differs from emb.0.weight"),
        ("nothing shared", {}, [], {"tie_transition": True}, "proj.2.weight differs from proj.1.weight"),
        ("nothing shared", {}, [], {"tie_weights": "yes"}, "tie_weights is 'yes'"),
        ("nothing shared", {}, [], {"emb_dim": 48}, r"proj.0.weight has shape \[24, 32\], expected \[24, 48\]"),
        ("nothing shared", {}, [], {"inner_dim": 0}, r"has shape .* expected .*32"),
        ("nothing shared", {}, [], {"inner_dim": "24.24"}, "inner_dim is '24.24'"),
        ("nothing shared", {}, [], {"vocab_size": 95}, r"emb.0.weight has shape \[96, 24\], expected \[95, 24\]"),
        ("nothing shared", {}, [], {"n_predict": None}, "n_predict is None"),
        ("nothing shared", {"ln0.weight": torch.zeros(32)}, [], {}, "unexpected tensor ln0.weight"),
        ("nothing shared", {"emb.0.weight": torch.zeros(96, 24)}, [], {}, "two names"),
        ("nothing shared", {"speculator.ln.0.bias": torch.zeros(24, dtype=torch.int32)}, [], {}, "ln.0.bias has type"),
        ("tied by the older name", {}, [], {"tie_wts": False}, "missing: emb.1.weight"),
        ("tied by the older name", {}, ["speculator.proj.1.weight"], {}, "missing: proj.1.weight"),
        ("nothing shared", {"speculator.forget_emb.0.weight": torch.zeros(96, 24)}, [], {}, "Arctic"),
        ("nothing shared", {"proj.0.0.weight": torch.zeros(24, 32)}, [], {}, "Arctic"),
    ],
)
def test_what_does_not_fit(layout, put, drop, config, message, tmp_path):
    write_speculator(tmp_path, LAYOUTS[layout])
    change(tmp_path, put, drop, **config)
    with pytest.raises(CheckpointError, match=message):
        load_mlp_speculator(tmp_path)


def test_another_vocabulary_than_the_targets(tmp_path):
    write_speculator(tmp_path / "mlp", LAYOUTS["nothing shared"])
    write_target(tmp_path / "target", vocab=128)
    with pytest.raises(CheckpointError, match="vocab_size is 96, the target's is 128"):
        load_mlp_speculator(tmp_path / "mlp", tmp_path / "target")


def test_other_families(tmp_path):
    write_medusa(tmp_path / "medusa", replace(MEDUSA["vLLM"]))
    write_head(tmp_path / "eagle", EAGLE1["no bias"])
    for name, family in (("medusa", "Medusa"), ("eagle", "EAGLE")):
        (tmp_path / name / "config.json").write_text(json.dumps({"emb_dim": 32, "n_predict": 3, "vocab_size": 96}))
        with pytest.raises(CheckpointError, match=f"family is {family}; expected MLP speculator"):
            load_mlp_speculator(tmp_path / name)
    write_speculator(
        tmp_path / "mlp", LAYOUTS["nothing shared"], hidden_size=32, intermediate_size=4, num_attention_heads=4
    )
    with pytest.raises(CheckpointError, match="MLP speculator checkpoint, no EAGLE head"):
        load_eagle(tmp_path / "mlp")
