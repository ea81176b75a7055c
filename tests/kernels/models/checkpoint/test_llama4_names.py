from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import adaptable_modules
from slipstream_kernels.models.checkpoint.llama4_names import stored_llama4_name
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import check_headers, iterate_weights, load_tensors
from support.experts import add_vision, part_experts
from support.families import EXPERTS
from support.models import make_tiny_model


@pytest.mark.parametrize("nested", [False, True])
def test_names_of_a_folder(nested: bool) -> None:
    prefix = "language_model." if nested else ""
    layer = "model.layers.3."
    for name, stored in (
        ("lm_head.weight", "lm_head.weight"),
        (layer + "self_attn.q_proj.weight", layer + "self_attn.q_proj.weight"),
        (layer + "mlp.gate.weight", layer + "feed_forward.router.weight"),
        (layer + "mlp.gate_proj.weight", layer + "feed_forward.gate_proj.weight"),
        (layer + "mlp.shared_expert.up_proj.weight", layer + "feed_forward.shared_expert.up_proj.weight"),
        (layer + "mlp.experts.7.down_proj.weight", layer + "feed_forward.experts.7.down_proj.weight"),
    ):
        assert stored_llama4_name(name, nested=nested, fused=False) == prefix + stored
    for part, whole in (("gate_proj", "gate_up_proj"), ("up_proj", "gate_up_proj"), ("down_proj", "down_proj")):
        name = f"{layer}mlp.experts.7.{part}.weight"
        fused = stored_llama4_name(name, nested=nested, fused=True)
        assert fused == f"{prefix}{layer}feed_forward.experts.{whole}"


@pytest.mark.parametrize("name", ["llama4", "llama4, two of all"])
def test_experts_as_one_tensor_and_as_modules_are_the_same(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **EXPERTS[name])
    fused = ModelConfig.from_folder(folder)
    before = load_tensors(folder, fused)
    whole = load_file(folder / "model.safetensors")
    part_experts(folder)
    parted = ModelConfig.from_folder(folder)
    assert fused.fused_experts and not parted.fused_experts
    check_headers(folder, parted)
    after = load_tensors(folder, parted)
    assert before.keys() == after.keys() and all(before[each].equal(after[each]) for each in before)
    layer = next(filter(fused.has_experts, range(fused.num_layers)))
    size = whole[f"model.layers.{layer}.feed_forward.experts.down_proj"].shape[1]
    gate_up = whole[f"model.layers.{layer}.feed_forward.experts.gate_up_proj"][2]
    assert before[f"model.layers.{layer}.mlp.experts.2.up_proj.weight"].equal(gate_up[:, size:].t())


def test_experts_of_one_tensor_are_turned_over_on_the_device(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **EXPERTS["llama4"])
    places = {name: tensor.device.type for name, tensor in iterate_weights(
        folder, ModelConfig.from_folder(folder), device="meta"
    )}  # fmt: skip
    assert {place for name, place in places.items() if ".mlp.experts." in name} == {"meta"}
    assert {place for name, place in places.items() if ".mlp.experts." not in name} == {"cpu"}


def test_heads_have_halves_in_the_place_of_pairs(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **EXPERTS["llama4"])
    config = ModelConfig.from_folder(folder)
    stored, computed = load_file(folder / "model.safetensors"), load_tensors(folder, config)
    for name in ("q", "k"):
        rows = stored[f"model.layers.1.self_attn.{name}_proj.weight"].unflatten(0, (-1, config.head_dim))
        found = computed[f"model.layers.1.self_attn.{name}_proj.weight"].unflatten(0, (-1, config.head_dim))
        half = config.head_dim // 2
        assert found[:, :half].equal(rows[:, ::2]) and found[:, half:].equal(rows[:, 1::2])
    name = "model.layers.1.self_attn.v_proj.weight"
    assert computed[name].equal(stored[name])


def test_projections_of_a_part_may_have_adapters(tmp_path: Path) -> None:
    """Those of attention, and of layers without experts."""
    folder = make_tiny_model(tmp_path / "model", **EXPERTS["llama4"])
    add_vision(folder)
    modules = adaptable_modules(ModelConfig.from_folder(folder))
    assert modules["language_model.model.layers.0.self_attn.q_proj"] == (256, 128)
    assert modules["language_model.model.layers.1.feed_forward.up_proj"] == (96, 128)
    assert not any("layers.0.feed_forward" in name for name in modules)
