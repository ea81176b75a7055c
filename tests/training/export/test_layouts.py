"""Heads in other engines' layouts say what they said before, by the rules that those engines read them by."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from draft_service.heads.config import HeadConfig
from draft_service.heads.loading import load_eagle
from draft_service.heads.medusa_loading import load_medusa
from support.eagle_heads import EAGLE1, EAGLE3, write_head, write_target
from support.medusa_heads import LAYOUTS, write_medusa
from training.cli import app
from training.export.layouts import LAYER_IDS, export_head

MIDLAYER = replace(EAGLE3["midlayer, offsets and mask"], binary=False)
EAGLE3_CONFIG = {"architectures": ["LlamaForCausalLMEagle3"], "target_hidden_size": 32, "tie_word_embeddings": False}


@pytest.fixture
def run(tmp_path):
    """A run of `fit` as far as its head goes, and the target beside it."""
    write_target(tmp_path / "target", architectures=["LlamaForCausalLM"])
    write_head(tmp_path / "run" / "head", MIDLAYER, **EAGLE3_CONFIG)
    return tmp_path / "run"


def change(run, **config):
    path = run / "head" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("boundaries", [None, [2, 6, 9], [3, 6, 9]])
def test_an_eagle3_head_is_the_same_head(run, tmp_path, layout, boundaries):
    if boundaries:
        change(run, **{LAYER_IDS: boundaries})
    out = tmp_path / layout
    assert export_head(run, out, layout, model=tmp_path / "target") == "eagle3"
    before, after = load_eagle(run / "head", tmp_path / "target"), load_eagle(out, tmp_path / "target")
    assert list(after.config.boundaries) == (boundaries or [])
    shape = {"boundaries": before.config.boundaries, "speculators": after.config.speculators}
    assert replace(after.config, **shape) == replace(before.config, speculators=shape["speculators"])
    assert torch.equal(after.vocabulary.ids, before.vocabulary.ids)
    assert torch.equal(after.vocabulary.head, before.vocabulary.head.bfloat16().float())
    assert after._weights.keys() == before._weights.keys()
    for name, weight in before._weights.items():
        assert torch.equal(after._weights[name], weight.bfloat16().float()), name


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
def test_a_head_without_rows_is_given_the_targets(layout, tmp_path):
    rows = write_target(tmp_path / "target", architectures=["LlamaForCausalLM"])["lm_head.weight"]
    config = EAGLE3_CONFIG | {"draft_vocab_size": 96}
    write_head(tmp_path / "head", EAGLE3["the target's scores"], **config)
    with pytest.raises(ValueError, match="--model"):
        export_head(tmp_path / "head", tmp_path / "out", layout)
    write_target(tmp_path / "more", vocab=100)
    with pytest.raises(ValueError, match="100 tokens, the head, without rows, scores 96"):
        export_head(tmp_path / "head", tmp_path / "out", layout, model=tmp_path / "more")
    export_head(tmp_path / "head", tmp_path / "out", layout, model=tmp_path / "target")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["lm_head.weight"], rows.bfloat16())


@pytest.mark.parametrize("boundaries", [[2, 6, 9], [3, 6, 9], [1, 6, 9]])
def test_layers_are_counted_as_each_engine_counts(run, tmp_path, boundaries):
    change(run, **{LAYER_IDS: boundaries})
    for layout in ("sglang", "vllm", "speculators"):
        export_head(run, tmp_path / layout, layout, model=tmp_path / "target")
        assert config_of(tmp_path / layout)[LAYER_IDS] == boundaries
    assert captured_by_sglang(config_of(tmp_path / "sglang")) == boundaries


def captured_by_sglang(config):
    """Boundaries that SGLang 0.5.16 captures of a Llama or Qwen; it looks in `eagle_config` alone."""
    return [each + 1 for each in config["eagle_config"][LAYER_IDS]]


def test_states_lie_in_the_order_in_which_engines_gather_them(run, tmp_path):
    change(run, **{LAYER_IDS: [6, 9, 2]})
    fc = load_file(run / "head" / "model.safetensors")["fc.weight"].bfloat16()
    for layout in ("sglang", "vllm", "speculators"):
        export_head(run, tmp_path / layout, layout, model=tmp_path / "target")
        assert config_of(tmp_path / layout)[LAYER_IDS] == [2, 6, 9]
        exported = load_file(tmp_path / layout / "model.safetensors")["fc.weight"]
        assert torch.equal(exported, torch.cat([fc[:, 64:], fc[:, :64]], dim=1))


def test_sglang_has_room_for_any_number_of_boundaries_that_it_captures(run, tmp_path):
    write_head(run / "head", replace(MIDLAYER, states=2), **EAGLE3_CONFIG, **{LAYER_IDS: [4, 9]})
    with pytest.raises(ValueError, match="2 boundaries, not three"):
        export_head(run, tmp_path / "vllm", "vllm")
    export_head(run, tmp_path / "two", "sglang", model=tmp_path / "target")
    assert config_of(tmp_path / "two")["num_aux_hidden_states"] == 2
    assert load_eagle(tmp_path / "two", tmp_path / "target").config.boundaries == (4, 9)
    change(run, **{LAYER_IDS: [4, 12]})
    with pytest.raises(ValueError, match="up to boundary 11 of --model, the head reads 12"):
        export_head(run, tmp_path / "last", "sglang", model=tmp_path / "target")
    change(run, **{LAYER_IDS: [4, 6, 9]})
    with pytest.raises(ValueError, match=r"reads 2 boundaries, .* names 3"):
        export_head(run, tmp_path / "more", "sglang")


def test_speculators_names_the_target_and_the_chain(run, tmp_path):
    out = tmp_path / "out"
    export_head(run, out, "speculators", model=tmp_path / "target", draft_tokens=7)
    config = config_of(out)
    assert config["norm_before_residual"] is False  # where it is missing, true is meant
    assert config["draft_vocab_size"] == 40
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": str(tmp_path / "target"),
        "architectures": ["LlamaForCausalLM"],
    }
    assert config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 7
    names = load_file(out / "model.safetensors").keys()
    assert not [name for name in names if "midlayer" in name]
    assert HeadConfig.from_folder(out).speculators


def test_an_export_brings_the_card(run, tmp_path):
    (run / "head" / "README.md").write_text("# A head\n")
    export_head(run, tmp_path / "out", "sglang")
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("# A head\n") and "sglang" in card


def test_an_export_that_is_killed_is_done_again(run, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def killed(*_):
        raise KeyboardInterrupt

    (run / "head" / "tokenizer.json").write_text("{}")
    with monkeypatch.context() as patched:
        patched.setattr("training.export.layouts.shutil.copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            export_head(run, out, "vllm")
    assert not out.exists()
    out.mkdir()
    assert export_head(run, out, "vllm") == "eagle3"
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert not out.with_name("out.part").exists()


def test_sglang_finds_the_bias_that_it_would_draw_at_random(tmp_path):
    write_target(tmp_path / "target")
    layout = replace(EAGLE1["no bias"], binary=False, own_embedding=False)
    write_head(tmp_path / "head", layout, architectures=["LlamaForCausalLMEagle"])
    assert export_head(tmp_path / "head", tmp_path / "sglang", "sglang") == "eagle"
    assert config_of(tmp_path / "sglang")["bias"] is True
    assert torch.equal(load_file(tmp_path / "sglang" / "model.safetensors")["fc.bias"], torch.zeros(32).bfloat16())
    export_head(tmp_path / "head", tmp_path / "vllm", "vllm")
    assert "fc.bias" not in load_file(tmp_path / "vllm" / "model.safetensors")


def test_medusa_heads_bring_the_target_s_rows_to_vllm(tmp_path):
    rows = write_target(tmp_path / "target")["lm_head.weight"]
    layout = replace(LAYOUTS["TGI, rows of the target"], file="model.safetensors")
    facts = {"architectures": ["MedusaModel"], "hidden_size": 32, "vocab_size": 96, "medusa_fc_bias": True}
    write_medusa(tmp_path / "head", layout, medusa_num_heads=3, **facts)
    with pytest.raises(ValueError, match="--model"):
        export_head(tmp_path / "head", tmp_path / "out", "vllm")
    assert export_head(tmp_path / "head", tmp_path / "out", "vllm", model=tmp_path / "target") == "medusa"
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    blocks = [f"blocks.{head}.layers.0.{part}" for head in range(3) for part in ("bias", "weight")]
    assert sorted(names) == sorted([*blocks, "lm_heads.0.weight"])
    before, after = load_medusa(tmp_path / "head", tmp_path / "target"), load_medusa(tmp_path / "out")
    for one, other in zip(before.heads, after.heads, strict=True):
        assert torch.equal(other.rows, rows.bfloat16().float())
        for (weight, bias), (exported, with_bias) in zip(one.layers, other.layers, strict=True):
            assert torch.equal(exported, weight.bfloat16().float())
            assert torch.equal(with_bias, bias.bfloat16().float())


def test_what_cannot_be_written_is_said(run, tmp_path):
    def command(*arguments):
        result = CliRunner().invoke(app, ["export", *map(str, arguments)])
        return result.exit_code, " ".join(result.output.replace("│", " ").split())

    assert command(run, "--out", tmp_path / "ok", "--format", "vllm")[0] == 0
    status, text = command(run, "--out", tmp_path / "ok", "--format", "vllm")
    assert (status, "is not empty" in text) == (2, True)
    assert "--model" in command(run, "--out", tmp_path / "a", "--format", "speculators")[1]
    assert "sglang, vllm" in command(run, "--out", tmp_path / "b", "--format", "onnx")[1]
    change(run, architectures=["MiMoMTPModel"])
    assert "there is: none" in command(run, "--out", tmp_path / "c", "--format", "vllm")[1]
    change(run, architectures=["BertModel"])
    assert "architectures" in command(run, "--out", tmp_path / "d", "--format", "vllm")[1]
    write_head(run / "head", replace(MIDLAYER, states=2), **EAGLE3_CONFIG)
    assert "2 boundaries" in command(run, "--out", tmp_path / "e", "--format", "vllm")[1]
