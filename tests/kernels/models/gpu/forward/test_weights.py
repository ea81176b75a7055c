from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.quantisation_config import read_quantisation
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors
from slipstream_kernels.models.gpu.forward.weights import GpuWeights, weight_bytes
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.experts.fragment_experts import FragmentExperts
from slipstream_kernels.ops.gpu.gate_up import separate_gate_up
from slipstream_kernels.ops.gpu.packed.any_linear import Weight
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight, unpacked
from slipstream_kernels.ops.quantised_weight import decode
from support.experts import pack_mxfp4
from support.families import EXPERTS
from support.models import make_tiny_model
from support.quantised_models import FORMS, LARGE_GROUPS, Form, write_quantised


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes that two ranks can share."""
    folder = tmp_path_factory.mktemp("weights") / request.param
    tied = request.param == "llama"
    return make_tiny_model(folder, family=request.param, heads=4, kv_heads=2, tied=tied, shards=2)


def load(folder: Path, rank: int = 0, size: int = 1, device: str = "cpu") -> GpuWeights:
    return GpuWeights.load(folder, ModelConfig.from_folder(folder), device, rank=rank, size=size, progress=False)


def tensors_of(weights: GpuWeights) -> list[Any]:
    layers = [getattr(layer, name) for layer in weights.layers for name in type(layer).__slots__]
    return [weights.embedding, weights.final_norm, weights.head, *(tensor for tensor in layers if tensor is not None)]


def test_packs_every_tensor(folder: Path) -> None:
    tensors, weights = load_tensors(folder, ModelConfig.from_folder(folder)), load(folder)
    for index, layer in enumerate(weights.layers):
        part = {
            name.removeprefix(f"model.layers.{index}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"model.layers.{index}.")
        }
        attention = [part[f"self_attn.{name}_proj.weight"] for name in "qkv"]
        assert torch.equal(layer.qkv, torch.cat(attention))
        assert torch.equal(
            separate_gate_up(layer.gate_up, dim=0),
            torch.cat([part["mlp.gate_proj.weight"], part["mlp.up_proj.weight"]]),
        )
        assert torch.equal(layer.o, part["self_attn.o_proj.weight"])
        assert torch.equal(layer.down, part["mlp.down_proj.weight"])
        assert torch.equal(layer.input_norm, part["input_layernorm.weight"])
        assert torch.equal(layer.post_norm, part["post_attention_layernorm.weight"])
        if layer.qkv_bias is not None:
            assert torch.equal(layer.qkv_bias, torch.cat([part[f"self_attn.{name}_proj.bias"] for name in "qkv"]))
        for name in ("q_norm", "k_norm"):
            norm = getattr(layer, name)
            assert (norm is None) == (f"self_attn.{name}.weight" not in part)
            assert norm is None or torch.equal(norm, part[f"self_attn.{name}.weight"])
    assert torch.equal(weights.embedding, tensors["model.embed_tokens.weight"])
    assert torch.equal(weights.final_norm, tensors["model.norm.weight"])
    assert torch.equal(weights.head, tensors.get("lm_head.weight", weights.embedding))
    assert all(tensor.is_contiguous() and tensor.dtype == torch.bfloat16 for tensor in tensors_of(weights))


def test_bytes_are_known_beforehand(folder: Path) -> None:
    config = ModelConfig.from_folder(folder)
    for rank, size in ((0, 1), (1, 2)):
        weights = load(folder, rank, size)
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors_of(weights)
        }
        assert sum(storages.values()) == weights.nbytes == weight_bytes(Shard(config, rank, size))


def test_ranks_hold_parts_of_the_whole(folder: Path) -> None:
    whole, parts = load(folder), [load(folder, rank, 2) for rank in range(2)]
    config = whole.shard.config
    assert torch.equal(torch.cat([part.head for part in parts]), whole.head)
    for index, layer in enumerate(whole.layers):
        ours = [part.layers[index] for part in parts]
        assert torch.equal(torch.cat([part.o for part in ours], 1), layer.o)
        assert torch.equal(torch.cat([part.down for part in ours], 1), layer.down)
        halves = [separate_gate_up(part.gate_up, dim=0).chunk(2) for part in ours]
        gate_up = separate_gate_up(layer.gate_up, dim=0)
        assert torch.equal(torch.cat([half[i] for i in range(2) for half in halves]), gate_up)
        sizes = [config.q_size // 2, config.kv_size // 2, config.kv_size // 2]
        split = [part.qkv.split(sizes) for part in ours]
        assert torch.equal(torch.cat([part[i] for i in range(3) for part in split]), layer.qkv)
        assert all(torch.equal(part.input_norm, layer.input_norm) for part in ours)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (3, "num_key_value_heads is 2, which does not divide among 3 ranks"),
        (4, "num_key_value_heads is 2, which does not divide among 4 ranks"),
    ],
)
def test_heads_that_do_not_divide(folder: Path, size: int, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(folder, 0, size)


def test_other_sizes_that_do_not_divide(tmp_path: Path) -> None:
    narrow = make_tiny_model(tmp_path / "narrow", heads=2, kv_heads=2, intermediate_size=208)
    with pytest.raises(CheckpointError, match=r"intermediate_size is 208, .* 2 ranks in multiples of 16"):
        load(narrow, 0, 2)
    odd = make_tiny_model(tmp_path / "odd", heads=2, kv_heads=2, vocab_size=511)
    with pytest.raises(CheckpointError, match="vocab_size is 511"):
        load(odd, 1, 2)
    with pytest.raises(ValueError, match="rank is 2 of 2"):
        load(odd, 2, 2)


def test_random_weights_are_one_model_on_all_ranks(folder: Path) -> None:
    config = ModelConfig.from_folder(folder)
    whole, again, other = (GpuWeights.random(config, "cpu", seed) for seed in (5, 5, 6))
    part = GpuWeights.random(config, "cpu", 5, rank=1, size=2)
    assert all(torch.equal(a, b) for a, b in zip(tensors_of(whole), tensors_of(again), strict=True))
    assert not torch.equal(whole.layers[1].o, other.layers[1].o)
    assert torch.equal(part.layers[1].o, whole.layers[1].o[:, config.q_size // 2 :])
    assert torch.equal(part.head, whole.head[config.vocab_size // 2 :])


@pytest.mark.parametrize("form", [RoundedFormat("fp8"), RoundedFormat("w4a16", 128)], ids=["fp8", "w4a16"])
def test_random_weights_are_quantised_as_the_config_says(folder: Path, form: RoundedFormat) -> None:
    plain = replace(ModelConfig.from_folder(folder), intermediate_size=256)
    config = replace(plain, quantisation=read_quantisation({"quantization_config": form.config(["lm_head"])}))
    weights, part = GpuWeights.random(config, "cpu", 5), GpuWeights.random(config, "cpu", 5, rank=1, size=2)
    original = GpuWeights.random(plain, "cpu", 5)
    for layer, ours, before in zip(weights.layers, part.layers, original.layers, strict=True):
        for name in ("qkv", "o", "gate_up", "down"):
            packed, known = getattr(layer, name), getattr(before, name)
            assert isinstance(packed, PackedWeight) and packed.form.number == ("e4m3" if form.name == "fp8" else "int4")
            error = (decode(unpacked(packed)).float() - known.float()).norm() / known.float().norm()
            assert error < (0.04 if form.name == "fp8" else 0.2)
        if isinstance(ours.o, PackedWeight):
            assert torch.equal(decode(unpacked(ours.o)), decode(unpacked(layer.o))[:, config.q_size // 2 :])
    assert torch.equal(weights.embedding, original.embedding) and torch.equal(weights.head, original.head)
    assert weights.nbytes < original.nbytes


def test_random_experts_of_four_bits(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **EXPERTS["gpt_oss"])
    pack_mxfp4(folder)
    weights = GpuWeights.random(ModelConfig.from_folder(folder), "cpu")
    experts = weights.layers[0].experts
    assert experts is not None and isinstance(experts.gate_up, FragmentExperts)
    assert len(experts.gate_up.codes.unique()) > 100
    assert isinstance(weights.layers[0].qkv, torch.Tensor)


MIXED = Form(
    {**FORMS["int8"].config, "ignore": ["lm_head", "model.layers.0.mlp.up_proj", "model.layers.1.self_attn.o_proj"]},
    FORMS["int8"].write,
    ignore=("lm_head", "layers.0.mlp.up_proj", "layers.1.self_attn.o_proj"),
)
HEAD_TOO = Form({**LARGE_GROUPS["pack4 g128"].config, "ignore": []}, LARGE_GROUPS["pack4 g128"].write, ignore=())


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
@pytest.mark.parametrize(
    ("form", "decoded"),
    [
        (FORMS["fp8 block"], 0),
        (FORMS["fp8 tensor"], 0),
        (FORMS["int8 zeros"], 0),
        (FORMS["gptq 8 bits"], 0),
        (LARGE_GROUPS["awq g128"], 0),
        (HEAD_TOO, 0),
        (MIXED, 1),
        (FORMS["awq g32"], 8),
    ],
    ids=["fp8 block", "fp8 tensor", "int8 zeros", "gptq 8 bits", "awq g128", "head too", "mixed", "awq g32"],
)
def test_quantised_weights_are_packed_and_stand_for_the_decoded_model(
    form: Form, decoded: int, device: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On one rank and on two; layers that no kernel takes, and those whose parts differ, are in bfloat16."""
    caplog.set_level("INFO")
    source = make_tiny_model(
        tmp_path / "source", family="qwen2", heads=4, kv_heads=2, intermediate_size=256, tied=False
    )  # fmt: skip
    folder = write_quantised(source, tmp_path / "model", form)
    for rank, size in ((0, 1), (0, 2), (1, 2)):
        got, expected = (load(each, rank, size, device) for each in (folder, tmp_path / "model-plain"))
        pairs = list(zip(parts_of(got), parts_of(expected), strict=True))
        for ours, plain in pairs:
            whole = decode(unpacked(ours)) if isinstance(ours, PackedWeight) else ours
            assert torch.equal(whole, plain)
        packed = [ours for ours, _ in pairs if isinstance(ours, PackedWeight)]
        assert len(packed) == 8 - decoded - (form is MIXED) + (form is HEAD_TOO)
        assert all(each.room is got.room for each in packed)
        assert got.nbytes == weight_bytes(got.shard) == sum(part.nbytes for part, _ in pairs) + got.room.nbytes
        assert decoded == 8 or got.nbytes < expected.nbytes
    lines = [line for line in caplog.messages if "are decoded to bfloat16" in line]
    assert len(lines) == (2 if decoded else 0)
    assert not decoded or f"{decoded} layers are decoded to bfloat16" in lines[0]


def test_a_rank_whose_columns_begin_within_a_group_decodes(tmp_path: Path) -> None:
    source = make_tiny_model(tmp_path / "source", heads=6, kv_heads=2, intermediate_size=256)
    folder = write_quantised(source, tmp_path / "model", LARGE_GROUPS["awq g128"])
    for rank in range(2):
        got, expected = (load(each, rank, 2) for each in (folder, tmp_path / "model-plain"))
        assert isinstance(got.layers[0].qkv, PackedWeight)
        assert torch.equal(got.layers[0].o, expected.layers[0].o)


def parts_of(weights: GpuWeights) -> list[Weight]:
    """All weights, packed ones too."""
    return [part for part in tensors_of(weights) if part is not None]
