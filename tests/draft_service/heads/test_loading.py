"""What is no EAGLE head, or not all of one, is refused by name."""

import dataclasses
import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service.heads.loading import load_eagle, target_rows
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from support.eagle_heads import EAGLE1, EAGLE3, Shape, write_head, write_target
from support.experts import add_vision, part_experts
from support.families import EXPERTS
from support.models import make_tiny_model
from support.quantised_models import FORMS, Form, write_quantised


@pytest.fixture
def folder(tmp_path):
    write_target(tmp_path / "target")
    write_head(tmp_path / "head", EAGLE3["layers.0"])
    return tmp_path / "head"


def load(folder, **options):
    return load_eagle(folder, folder.parent / "target", **options)


def change(folder, put=(), drop=(), **config):
    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if name not in drop} | dict(put)
    save_file(tensors, path)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | config))


@pytest.mark.parametrize(
    ("put", "drop", "message"),
    [
        ({}, ["layers.0.mlp.up_proj.weight"], "missing.*layers.0.mlp.up_proj.weight"),
        ({}, ["norm.weight"], "missing.*norm.weight"),
        ({}, ["fc.weight"], "fc.weight"),
        ({}, ["d2t", "t2d"], "d2t is missing"),
        ({}, ["lm_head.weight"], "lm_head.weight"),
        ({"fc.bias": torch.zeros(32)}, [], "unexpected tensor fc.bias"),
        ({"layers.1.input_layernorm.weight": torch.zeros(32)}, [], "unexpected tensor layers.1"),
        ({"midlayer.hidden_norm.weight": torch.zeros(32)}, [], "two names"),
        ({"layers.0.self_attn.q_proj.weight": torch.zeros(32, 32)}, [], r"q_proj.weight has shape \[32, 32\]"),
        ({"layers.0.self_attn.q_norm.weight": torch.zeros(8)}, [], "only layers.0.self_attn.q_norm.weight"),
        ({"fc_norm.0.weight": torch.zeros(32)}, [], "only fc_norm.0.weight"),
        ({"fc.weight": torch.zeros(32, 80)}, [], r"fc.weight is of shape \[32, 80\]"),
        ({"norm.weight": torch.zeros(32, dtype=torch.int32)}, [], "norm.weight has type"),
        ({"d2t": torch.zeros(39, dtype=torch.int64)}, [], "d2t has shape"),
        ({"d2t": torch.arange(40)}, [], "different tokens"),
        ({"d2t": torch.full((40,), 60)}, ["t2d"], "from 60 to 99 of 96"),
        ({"d2t": -torch.arange(40)}, ["t2d"], "twice"),
        ({"t2d": torch.ones(96, dtype=torch.bool)}, ["d2t"], "marks 96 tokens"),
        ({"t2d": torch.ones(40, dtype=torch.bool)}, [], "t2d has shape"),
        ({"mask_hidden": torch.zeros(1, 1, 96)}, [], "P-EAGLE"),
        ({"hidden_norm.weight": torch.zeros(32)}, [], "DFlash"),
        ({"model.mtp_layers.0.input_proj.weight": torch.zeros(32, 64)}, [], "MTP"),
        ({"0.0.linear.weight": torch.zeros(32, 32)}, [], "Medusa"),
        ({"speculator.emb.0.weight": torch.zeros(32, 32)}, [], "MLP"),
    ],
)
def test_tensors_that_do_not_fit(put, drop, message, folder):
    change(folder, put, drop)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"hidden_size": None}, "hidden_size"),
        ({"rope_scaling": {"rope_type": "mrope"}}, "mrope"),
        ({"norm_before_fc": True}, "input_norm.weight"),
        ({"fc_norm": True}, "fc_norm.0.weight"),
        ({"vocab_size": 128}, "vocab_size is 128"),
        ({"eagle_aux_hidden_state_layer_ids": ["2"]}, "eagle_aux_hidden_state_layer_ids"),
        ({"num_hidden_layers": 2}, "layers.1"),
    ],
)
def test_configs_that_do_not_fit(config, message, folder):
    if "vocab_size" in config:
        change(folder, drop=["t2d"])
    change(folder, **config)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_a_head_without_embedding_needs_the_target(folder):
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is missing; name the target"):
        load_eagle(folder)
    write_target(folder.parent / "target", hidden=48)
    with pytest.raises(CheckpointError, match="head needs its own"):
        load(folder)


def test_a_head_without_embedding_is_refused_where_the_target_scales_its_own(folder):
    make_tiny_model(folder.parent / "target", family="gemma2", hidden_size=32, vocab_size=300)
    with pytest.raises(CheckpointError, match=r"the target's \(gemma2\) are multiplied by a factor"):
        load(folder)
    embedding, head = target_rows(folder.parent / "target")
    assert embedding.data_ptr() == head.data_ptr()


@pytest.mark.parametrize("parted", [False, True])
def test_rows_of_a_target_that_sees_are_those_of_its_text(parted, tmp_path):
    """Whose fields and tensors are a part of the folder's; experts in eight bits leave embedding and scores alone."""
    target = make_tiny_model(tmp_path / "target", **EXPERTS["llama4"] | {"intermediate_size": 64})
    rows = load_file(target / "model.safetensors")
    add_vision(target)
    if parted:
        part_experts(target)
        quantise_folder(target, tmp_path / "quantised", RoundedFormat("fp8", 32))
        target = tmp_path / "quantised"
    embedding, scores = target_rows(target)
    assert torch.equal(embedding, rows["model.embed_tokens.weight"].float())
    assert torch.equal(scores, rows["lm_head.weight"].float())
    write_head(tmp_path / "head", EAGLE3["layers.0"], Shape(hidden=128, heads=2, kv_heads=1, vocab=512))
    head = load_eagle(tmp_path / "head", target)
    assert torch.equal(head.vocabulary.embedding, embedding)


@pytest.mark.parametrize("kind", ["llama4", "llama4_text"])
def test_a_head_with_a_layer_of_a_llama4_is_refused(kind, folder):
    """It turns pairs of neighbours: as a Llama's it would draft, and nothing would be accepted."""
    change(folder, model_type=kind)
    with pytest.raises(CheckpointError, match=f"model_type is '{kind}', supported are heads with layers of a Llama"):
        load(folder)


def test_an_eagle1_head_of_a_tied_target(tmp_path):
    target = write_target(tmp_path / "target", tied=True)
    write_head(tmp_path / "head", EAGLE1["two layers"])
    head = load(tmp_path / "head")
    assert torch.equal(head.vocabulary.head, target["model.embed_tokens.weight"])


@pytest.mark.parametrize("differs", [False, True])
def test_a_tied_target_that_stores_a_head(tmp_path, differs):
    target = write_target(tmp_path / "target", tie_word_embeddings=True)
    if not differs:
        change(tmp_path / "target", {"lm_head.weight": target["model.embed_tokens.weight"].clone()})
    embedding, head = target_rows(tmp_path / "target")
    assert torch.equal(head, target["lm_head.weight" if differs else "model.embed_tokens.weight"])
    assert (embedding.data_ptr() != head.data_ptr()) == differs


def test_a_tied_head_that_stores_its_scoring_rows(tmp_path, caplog):
    stored = write_head(tmp_path / "head", dataclasses.replace(EAGLE3["tied"], own_head=True))
    rows = load_eagle(tmp_path / "head").vocabulary
    assert torch.equal(rows.head, stored["lm_head.weight"]) and not torch.equal(rows.head, rows.embedding)
    assert "ties lm_head.weight to the embedding, but the file has another one" in caplog.text
    caplog.clear()
    change(tmp_path / "head", {"lm_head.weight": stored["embed_tokens.weight"].clone()})
    head = load_eagle(tmp_path / "head")
    assert head.vocabulary.head.data_ptr() == head.vocabulary.embedding.data_ptr()
    assert "lm_head.weight" not in head.weights and not caplog.messages


def test_token_map(tmp_path):
    target = write_target(tmp_path / "target")
    write_head(tmp_path / "head", EAGLE1["no bias"])
    ids = [7, 3, 90]
    torch.save(ids, tmp_path / "freq.pt")
    head = load(tmp_path / "head", map_file=tmp_path / "freq.pt")
    x = torch.randn(2, 32)
    logits = head.logits(x)
    torch.testing.assert_close(logits[:, ids], x @ target["lm_head.weight"][ids].T)
    assert int(torch.isfinite(logits).sum()) == 6
    for content, message in (([1, 1], "twice"), ([96], "of 96"), (["a"], "not a list"), ([0.5], "not a list")):
        torch.save(content, tmp_path / "freq.pt")
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path / "head", map_file=tmp_path / "freq.pt")


def test_token_map_of_an_eagle3_head(tmp_path):
    """Where it has none of its own."""
    target = write_target(tmp_path / "target")
    torch.save([7, 3, 90], tmp_path / "freq.pt")
    for name, layout in (("own", "whole vocabulary"), ("shared", "the target's scores")):
        written = write_head(tmp_path / name, EAGLE3[layout])
        rows = written.get("lm_head.weight", target["lm_head.weight"])
        mapped = load(tmp_path / name, map_file=tmp_path / "freq.pt").vocabulary
        assert (mapped.ids.tolist(), mapped.target_size) == ([7, 3, 90], 96)
        assert torch.equal(mapped.head, rows[[7, 3, 90]])
    write_head(tmp_path / "three", EAGLE3["layers.0"])
    with pytest.raises(CheckpointError, match="a token map is for heads without one"):
        load(tmp_path / "three", map_file=tmp_path / "freq.pt")


@pytest.mark.parametrize(
    ("layout", "config", "message"),
    [
        ("midlayer, offsets and mask", {"num_aux_hidden_states": 4}, "num_aux_hidden_states is 4, fc.weight reads 3"),
        ("midlayer, offsets and mask", {"num_aux_hidden_states": "3"}, "must be a positive integer"),
        ("whole vocabulary", {"draft_vocab_size": 40}, r"draft_vocab_size is 40, lm_head\.weight has 96 rows"),
        ("the target's scores", {"draft_vocab_size": 40}, r"draft_vocab_size is 40, no lm_head\.weight .* 96 rows"),
    ],
)
def test_sizes_of_the_config_that_the_tensors_contradict(layout, config, message, tmp_path):
    write_target(tmp_path / "target")
    write_head(tmp_path / "head", EAGLE3[layout], **config)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "head")
    for right in ({"draft_vocab_size": 96, "num_aux_hidden_states": 3}, {"draft_vocab_size": None}):
        write_head(tmp_path / "head", EAGLE3["whole vocabulary"], **right)
        assert load(tmp_path / "head").num_states == 3


def test_a_file_that_would_run_code_is_refused(tmp_path):
    write_head(tmp_path / "head", EAGLE1["no bias"])
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    (tmp_path / "head" / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Evil()}, 2))
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin"):
        load_eagle(tmp_path / "head")
    assert not marker.exists()


def test_split_binary_files(tmp_path):
    target = write_target(tmp_path / "target")
    assert target
    write_head(tmp_path / "head", EAGLE1["no bias"])
    whole = tmp_path / "head" / "pytorch_model.bin"
    tensors = torch.load(whole, weights_only=True)
    first = {name: tensor for name, tensor in tensors.items() if name.startswith("fc")}
    torch.save(first, tmp_path / "head" / "one.bin")
    torch.save({name: tensors[name] for name in tensors.keys() - first.keys()}, tmp_path / "head" / "two.bin")
    whole.unlink()
    with pytest.raises(CheckpointError, match=r"none of model.safetensors, pytorch_model.bin"):
        load(tmp_path / "head")
    index = {name: "one.bin" if name in first else "two.bin" for name in tensors}
    path = tmp_path / "head" / "pytorch_model.bin.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    assert load(tmp_path / "head").family == "eagle"
    path.write_text(json.dumps({"weight_map": {"fc.weight": "../one.bin"}}))
    with pytest.raises(CheckpointError, match="outside"):
        load(tmp_path / "head")


def test_rows_of_a_quantised_target_are_decoded(tmp_path):
    form = Form({**FORMS["pack4 g32"].config, "ignore": []}, FORMS["pack4 g32"].write, ignore=())
    folder = write_quantised(make_tiny_model(tmp_path / "source", tied=False), tmp_path / "model", form)
    rows = zip(target_rows(folder), target_rows(tmp_path / "model-plain"), strict=True)
    assert all(torch.equal(got, expected) for got, expected in rows)
