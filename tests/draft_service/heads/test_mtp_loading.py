"""What are no MTP layers, not all of them, or none that can be computed, is refused by name."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_service.heads.mtp_loading import holds_a_model, load_mtp
from slipstream_kernels.models.checkpoint.model_config import CheckpointError
from support.eagle_heads import EAGLE1, write_head, write_target
from support.mtp_heads import LAYOUTS, write_mtp

MIMO, NEXTN = "model.mtp_layers.0.", "model.layers.12."


def folder_of(tmp_path, name):
    """The target's own folder with layers of that layout."""
    write_target(tmp_path / "model")
    write_mtp(tmp_path / "model", LAYOUTS[name])
    return tmp_path / "model"


def change(folder, put=(), drop=(), **config):
    path = folder / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if name not in drop} | dict(put), path)
    document = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(document | config))


@pytest.mark.parametrize(
    ("name", "put", "drop", "message"),
    [
        ("MiMo", {}, [MIMO + "mlp.up_proj.weight"], "missing.*layers.0.mlp.up_proj.weight"),
        ("MiMo", {}, [MIMO + "input_proj.weight"], "missing.*layers.0.eh_proj.weight"),
        ("MiMo", {}, [MIMO + "self_attn.q_proj.bias"], "only layers.0.self_attn.k_proj.bias"),
        ("MiMo", {MIMO + "extra.weight": torch.zeros(3)}, [], "unexpected tensor layers.0.extra.weight in MTP layers"),
        ("MiMo", {MIMO + "input_proj.weight": torch.zeros(32, 32)}, [], r"eh_proj.weight has shape \[32, 32\]"),
        ("MiMo", {NEXTN + "eh_proj.weight": torch.zeros(32, 64)}, [], "must be model.mtp_layers"),
        ("MiMo", {MIMO + "final_layernorm.weight": torch.zeros(32, dtype=torch.int8)}, [], "has type torch.int8"),
        ("NextN", {"layers.12.enorm.weight": torch.zeros(32)}, [], "two names"),
        ("NextN", {}, [NEXTN + "shared_head.norm.weight"], "missing.*layers.0.final_norm.weight"),
        ("NextN", {NEXTN + "self_attn.kv_a_proj_with_mqa.weight": torch.zeros(3, 3)}, [], "latent attention"),
        ("NextN", {NEXTN + "self_attn.q_a_layernorm.weight": torch.zeros(3)}, [], "latent attention"),
        ("NextN", {NEXTN + "mlp.experts.7.up_proj.weight": torch.zeros(3, 3)}, [], "mixture of experts"),
        ("NextN", {NEXTN + "mlp.gate.weight": torch.zeros(3, 3)}, [], "mixture of experts"),
        ("NextN", {NEXTN + "mlp.up_proj.weight_scale_inv": torch.zeros(3, 3)}, [], "quantised"),
        ("NextN", {"model.layers.13.eh_proj.weight": torch.zeros(32, 64)}, [], "is 1, the folder holds 2"),
        (
            "NextN",
            {NEXTN + "self_attn.rotary_emb.inv_freq": torch.zeros(4)},
            [NEXTN + "enorm.weight"],
            "1 tensors are miss",
        ),
    ],
)
def test_tensors_that_do_not_fit(name, put, drop, message, tmp_path):
    folder = folder_of(tmp_path, name)
    change(folder, put, drop)
    with pytest.raises(CheckpointError, match=message):
        load_mtp(folder, folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "mrope"}}, "mrope"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"vocab_size": 128}, "embed_tokens.weight has shape"),
        ({"num_nextn_predict_layers": 3}, "is 3, the folder holds 1"),
    ],
)
def test_configs_that_do_not_fit(config, message, tmp_path):
    folder = folder_of(tmp_path, "NextN")
    change(folder, **config)
    with pytest.raises(CheckpointError, match=message):
        load_mtp(folder, folder)


def test_other_checkpoints(tmp_path):
    write_head(tmp_path / "head", EAGLE1["no bias"])
    write_target(tmp_path / "model")
    for name in ("head", "model"):
        with pytest.raises(CheckpointError, match="expected MTP"):
            load_mtp(tmp_path / name)


def test_extracted_layers_need_the_target(tmp_path):
    target = write_target(tmp_path / "model")
    write_mtp(tmp_path / "model", LAYOUTS["NextN, extracted"], tmp_path / "layers")
    assert holds_a_model(tmp_path / "model") and not holds_a_model(tmp_path / "layers")
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight is missing; name the target"):
        load_mtp(tmp_path / "layers")
    head = load_mtp(tmp_path / "layers", tmp_path / "model")
    assert torch.equal(head.vocabulary.head, target["lm_head.weight"])


def test_token_map(tmp_path):
    folder = folder_of(tmp_path, "MiMo")
    whole = load_mtp(folder, folder)
    ids = [7, 3, 90]
    torch.save(ids, tmp_path / "freq.pt")
    mapped = load_mtp(folder, folder, tmp_path / "freq.pt")
    states = torch.randn(2, 32)
    logits = mapped.logits(states)
    torch.testing.assert_close(logits[:, ids], whole.logits(states)[:, ids])
    assert int(torch.isfinite(logits).sum()) == 6
    torch.save([96], tmp_path / "freq.pt")
    with pytest.raises(CheckpointError, match="of 96"):
        load_mtp(folder, folder, tmp_path / "freq.pt")


def test_the_state_that_is_fed_back_can_be_chosen(tmp_path):
    folder = folder_of(tmp_path, "NextN")
    assert [load_mtp(folder, folder, post_norm=each).post_norm for each in (None, True, False)] == [False, True, False]
