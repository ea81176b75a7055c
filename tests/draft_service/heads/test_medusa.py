"""Scores of Medusa heads in every layout are those of the published computation; what does not fit is refused."""

import json
import pickle
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service.heads.medusa_loading import load_medusa
from slipstream.speculation.checkpoint_names import method_of
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from support.eagle_heads import EAGLE1, write_head, write_target
from support.medusa_heads import LAYOUTS, write_medusa
from support.mlp_speculators import Layout as Speculator
from support.mlp_speculators import write_speculator


def published(made, head, state, scale=1.0):
    """Head `head` on one state, element by element: residual blocks of a linear layer and SiLU, then the rows."""
    x = state.double()
    for weight, bias in made.layers[head]:
        z = weight.double() @ x
        if bias is not None:
            z = z + bias.double()
        x = x + z / (1 + torch.exp(-z))
    logits = torch.full((96,), -torch.inf, dtype=torch.float64)
    logits[made.ids] = scale * (made.rows[head].double() @ x)
    return logits


@pytest.mark.parametrize("name", LAYOUTS)
def test_logits(name, tmp_path):
    layout = LAYOUTS[name]
    made = write_medusa(tmp_path / "heads", layout, seed=4)
    heads = load_medusa(tmp_path / "heads", tmp_path / "target" if layout.rows == "target" else None)
    assert method_of(tmp_path / "heads") == "medusa"
    assert (len(heads), heads.hidden_size, heads.target_size, heads.entries) == (3, 32, 96, len(made.ids))
    states = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
    for head in range(3):
        wanted = torch.stack([published(made, head, state, layout.config.get("logit_scale", 1)) for state in states])
        torch.testing.assert_close(heads.logits(head, states).double(), wanted, atol=1e-4, rtol=0)


def test_split_files(tmp_path):
    made = write_medusa(tmp_path, LAYOUTS["in a whole model"])
    tensors = load_file(tmp_path / "model.safetensors")
    first = {name: each for name, each in tensors.items() if not name.startswith("medusa_head.2")}
    (tmp_path / "model.safetensors").unlink()
    save_file(first, tmp_path / "one.safetensors")
    save_file({name: tensors[name] for name in tensors.keys() - first.keys()}, tmp_path / "two.safetensors")
    weight_map = {name: "one.safetensors" if name in first else "two.safetensors" for name in tensors}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    state = torch.randn(1, 32)
    wanted = published(made, 2, state[0])
    torch.testing.assert_close(load_medusa(tmp_path).logits(2, state)[0].double(), wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", ["vLLM", "in a whole model, whose rows they take"])
def test_token_map(layout, tmp_path):
    made = write_medusa(tmp_path / "heads", LAYOUTS[layout])
    ids = [7, 3, 90]
    torch.save(ids, tmp_path / "freq.pt")
    heads = load_medusa(tmp_path / "heads", map_file=tmp_path / "freq.pt")
    assert heads.entries == 3
    state = torch.randn(1, 32)
    logits = heads.logits(1, state)[0]
    torch.testing.assert_close(logits[ids].double(), published(made, 1, state[0])[ids], atol=1e-4, rtol=0)
    assert int(torch.isfinite(logits).sum()) == 3


def change(folder, put=(), drop=(), **config):
    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if name not in drop} | dict(put)
    save_file(tensors, path)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | config))


ROWS, SQUARE = torch.zeros(96, 32), torch.zeros(32, 32)


@pytest.mark.parametrize(
    ("layout", "put", "drop", "config", "message"),
    [
        ("vLLM", {}, ["blocks.1.layers.0.weight"], {}, "missing: blocks.1.layers.0.weight"),
        ("vLLM", {}, ["lm_heads.1.weight"], {}, "missing: lm_heads.1.weight"),
        ("vLLM", {}, [], {"num_heads": 4}, "missing: blocks.3.layers.0.weight, lm_heads.3.weight"),
        ("vLLM", {}, [], {"medusa_fc_bias": True}, "3 tensors are missing: blocks.0.layers.0.bias"),
        ("vLLM", {"blocks.0.layers.0.bias": torch.zeros(32)}, [], {}, "missing: blocks.1.layers.0.bias"),
        ("vLLM", {}, [], {"medusa_num_layers": 2}, "missing: blocks.0.layers.1.weight"),
        ("vLLM, two layers", {}, [], {"medusa_num_layers": 1}, "unexpected tensor blocks.0.layers.1.weight"),
        ("vLLM", {"lm_head.weight": ROWS}, [], {}, "unexpected tensor lm_head.weight"),
        ("vLLM", {"model.norm.weight": torch.zeros(32)}, [], {}, "unexpected tensor model.norm.weight"),
        ("vLLM", {"medusa_head.lm_heads.0.weight": ROWS}, [], {}, "two names.*medusa_head.lm_heads.0"),
        ("vLLM", {"blocks.0.layers.0.weight": torch.zeros(32, 16)}, [], {}, r"weight has shape \[32, 16\]"),
        ("vLLM", {"lm_heads.1.weight": torch.zeros(95, 32)}, [], {}, r"lm_heads.1.weight has shape \[95, 32\]"),
        ("vLLM", {"lm_heads.1.weight": ROWS.int()}, [], {}, "lm_heads.1.weight has type"),
        ("vLLM", {}, [], {"hidden_size": 64}, r"blocks.0.layers.0.weight has shape \[32, 32\], expected \[64, 64\]"),
        ("vLLM", {}, [], {"vocab_size": 128}, "token_map is missing: 96 tokens of 128"),
        ("vLLM", {}, [], {"original_lm_head": True}, "lm_heads.1.weight differs from lm_heads.0.weight"),
        ("vLLM", {}, [], {"logit_scale": -1}, "logit_scale"),
        ("vLLM", {}, [], {"num_heads": "3"}, "num_heads"),
        ("vLLM, map", {}, ["token_map"], {}, "token_map is missing"),
        ("vLLM, map", {"token_map": torch.arange(39)}, [], {}, "token_map names 39 tokens, 40 are scored"),
        ("vLLM, map", {"token_map": torch.arange(60, 100)}, [], {}, "token_map names tokens from 60 to 99 of 96"),
        ("vLLM, map", {"token_map": torch.zeros(40, dtype=torch.int64)}, [], {}, "token_map names a token twice"),
        ("vLLM, map", {"token_map": torch.zeros(40)}, [], {}, "token_map: not a list"),
        ("vLLM, map", {}, [], {"vocab_size": None}, "vocab_size is missing"),
        ("vLLM, map", {}, [], {"truncated_vocab_size": 41}, "40 scoring rows, expected 41 or 96"),
        ("vLLM, lm_head", {}, ["lm_head.weight"], {}, "lm_heads.0.weight is missing; name the target"),
        ("in a whole model", {}, ["medusa_head.1.0.linear.bias"], {}, "missing: 1.0.linear.bias"),
        ("in a whole model", {}, ["medusa_head.0.1.weight"], {}, "missing: 0.1.weight"),
        ("in a whole model", {}, [], {"medusa_num_layers": 2}, "missing: 0.2.weight"),
        ("in a whole model", {"medusa_head.0.1.linear.weight": SQUARE}, [], {}, "unexpected tensor 0.1.linear.weight"),
        ("in a whole model", {}, [], {"medusa_num_heads": 5}, "missing: 3.0.linear.bias"),
    ],
)
def test_what_does_not_fit(layout, put, drop, config, message, tmp_path):
    write_medusa(tmp_path, LAYOUTS[layout])
    change(tmp_path, put, drop, **config)
    with pytest.raises(CheckpointError, match=message):
        load_medusa(tmp_path)


def test_what_does_not_fit_the_target(tmp_path):
    heads, target = tmp_path / "heads", tmp_path / "target"
    write_medusa(heads, LAYOUTS["TGI, rows of the target"])
    with pytest.raises(CheckpointError, match=r"0.1.weight is missing; name the target's folder"):
        load_medusa(heads)
    write_target(target, hidden=48)
    with pytest.raises(CheckpointError, match=r"lm_head.weight has shape \[96, 48\], expected \[96, 32\]"):
        load_medusa(heads, target)
    write_target(target, vocab=128)
    write_medusa(heads, LAYOUTS["vLLM"])
    with pytest.raises(CheckpointError, match="vocab_size is 96, the target's is 128"):
        load_medusa(heads, target)


def test_a_map_for_heads_that_have_one(tmp_path):
    write_medusa(tmp_path, LAYOUTS["vLLM, map"])
    torch.save([1, 2], tmp_path / "freq.pt")
    with pytest.raises(CheckpointError, match="these have the tensor token_map"):
        load_medusa(tmp_path, map_file=tmp_path / "freq.pt")


def test_other_families(tmp_path):
    write_head(tmp_path / "eagle", replace(EAGLE1["no bias"], binary=False))
    write_speculator(tmp_path / "mlp", Speculator())
    for name, family in (("eagle", "EAGLE"), ("mlp", "MLP speculator")):
        with pytest.raises(CheckpointError, match=f"family is {family}; expected Medusa"):
            load_medusa(tmp_path / name)
    write_target(tmp_path / "target")
    with pytest.raises(CheckpointError, match=r"none that is known, with tensors such as lm_head.weight"):
        load_medusa(tmp_path / "target")


def test_a_file_that_would_run_code_is_refused(tmp_path):
    write_medusa(tmp_path, LAYOUTS["the original, of whose heads the config knows two"])
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    (tmp_path / "medusa_lm_head.pt").write_bytes(pickle.dumps({"0.0.linear.weight": Evil()}, 2))
    with pytest.raises(CheckpointError, match=r"medusa_lm_head.pt"):
        load_medusa(tmp_path)
    assert not marker.exists()
