"""Random experts of small models, in the layouts that folders have."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file, save_file

_Tensors = Iterator[tuple[str, torch.Tensor]]
_BLOCK = 32
"""Elements of MXFP4 that share a scale."""


class Random(Protocol):
    """Random tensors."""

    def normal(self, *shape: int, scale: float) -> torch.Tensor: ...

    def linear(self, name: str, outputs: int, inputs: int, *, biased: bool = False) -> _Tensors: ...


def has_experts(config: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer of a model of this config.json has experts."""
    if config["model_type"] in ("mixtral", "gpt_oss"):
        return True
    if config["model_type"] == "llama4_text":
        every = config.get("interleave_moe_layer_step", 1)
        return layer in config.get("moe_layers", range(every - 1, config["num_hidden_layers"], every))
    step, plain = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", ())
    return config["model_type"].endswith("_moe") and layer not in plain and (layer + 1) % step == 0


def expert_tensors(config: Mapping[str, Any], prefix: str, random: Random) -> _Tensors:
    """A layer's router and experts; `prefix` is the layer's."""
    hidden, linear = config["hidden_size"], random.linear
    if config["model_type"] == "gpt_oss":
        yield from _gpt_oss_tensors(config, prefix + "mlp.", random)
        return
    if config["model_type"] == "llama4_text":
        yield from _llama4_tensors(config, prefix + "feed_forward.", random)
        return
    if config["model_type"] == "mixtral":
        prefix, parts, size = prefix + "block_sparse_moe.", ("w1", "w3", "w2"), config["intermediate_size"]
    else:
        prefix, parts, size = prefix + "mlp.", ("gate_proj", "up_proj", "down_proj"), config["moe_intermediate_size"]
    count = config.get("num_experts") or config["num_local_experts"]
    yield from linear(prefix + "gate", count, hidden)
    for expert in range(count):
        yield from network(f"{prefix}experts.{expert}.", parts, hidden, size, random)
    if shared := config.get("shared_expert_intermediate_size"):
        yield from network(f"{prefix}shared_expert.", parts, hidden, shared, random)
        yield from linear(prefix + "shared_expert_gate", 1, hidden)


def network(prefix: str, parts: tuple[str, ...], hidden: int, size: int, random: Random) -> _Tensors:
    """Gate, up and down of a feed-forward network."""
    for part in parts[:2]:
        yield from random.linear(prefix + part, size, hidden)
    yield from random.linear(prefix + parts[2], hidden, size)


def _gpt_oss_tensors(config: Mapping[str, Any], prefix: str, random: Random) -> _Tensors:
    hidden, size, count = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    yield from random.linear(prefix + "router", count, hidden, biased=True)
    # Some of them beyond the limit.
    yield prefix + "experts.gate_up_proj", random.normal(count, hidden, 2 * size, scale=4 * hidden**-0.5)
    yield prefix + "experts.gate_up_proj_bias", random.normal(count, 2 * size, scale=0.5)
    yield prefix + "experts.down_proj", random.normal(count, size, hidden, scale=0.2 * size**-0.5)
    yield prefix + "experts.down_proj_bias", random.normal(count, hidden, scale=0.1)


def _llama4_tensors(config: Mapping[str, Any], prefix: str, random: Random) -> _Tensors:
    hidden, size, count = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    yield from random.linear(prefix + "router", count, hidden)
    yield from network(prefix + "shared_expert.", ("gate_proj", "up_proj", "down_proj"), hidden, size, random)
    yield prefix + "experts.gate_up_proj", random.normal(count, hidden, 2 * size, scale=2 * hidden**-0.5)
    yield prefix + "experts.down_proj", random.normal(count, size, hidden, scale=size**-0.5)


def part_experts(folder: Path) -> None:
    """Rewrite a Llama-4's file: each expert a module of its own, as quantised folders have them."""
    path = folder / "model.safetensors"
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(path).items():
        if ".experts." not in name:
            tensors[name] = tensor
            continue
        prefix, _, part = name.rpartition(".")
        parts = ("down_proj",) if part == "down_proj" else ("gate_proj", "up_proj")
        for expert, weight in enumerate(tensor):
            for own, each in zip(parts, weight.t().chunk(len(parts)), strict=True):
                tensors[f"{prefix}.{expert}.{own}.weight"] = each.contiguous()
    save_file(tensors, path, metadata={"format": "pt"})


def add_vision(folder: Path) -> None:
    """Make a Llama-4 of text a part of one that sees: a nested config, names of tensors, and others' tensors."""
    path, config = folder / "config.json", json.loads((folder / "config.json").read_text())
    outer = {name: config.pop(name) for name in ("quantization_config", "torch_dtype") if name in config}
    vision = {"model_type": "llama4_vision_model", "hidden_size": 64}
    nested = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "vision_config": vision}
    path.write_text(json.dumps({**nested, **outer, "text_config": config}))
    weights = folder / "model.safetensors"
    tensors = {f"language_model.{name}": tensor for name, tensor in load_file(weights).items()}
    tensors |= {
        "vision_model.class_embedding": torch.ones(64),
        "multi_modal_projector.linear_1.weight": torch.ones(8, 8),
    }
    save_file(tensors, weights, metadata={"format": "pt"})


def pack_mxfp4(folder: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Give a gpt-oss model's experts random codes in MXFP4; returns (blocks, scales) by the name of the weight."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    random, packed = torch.Generator().manual_seed(3), {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, inputs, outputs = tensors.pop(name).shape
        shape = (count, outputs, inputs // _BLOCK)
        blocks = torch.randint(0, 256, (*shape, _BLOCK // 2), dtype=torch.uint8, generator=random)
        scales = torch.randint(120, 125, shape, dtype=torch.uint8, generator=random)
        packed[name] = blocks, scales
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (folder / "config.json").write_text(json.dumps(config))
    return packed


def fuse_experts(folder: Path) -> None:
    """Rewrite a model's file: the experts of a layer as one tensor, as transformers 5 holds them."""
    path = folder / "model.safetensors"
    tensors = {
        name.replace("block_sparse_moe", "mlp")
        .replace(".w1.", ".gate_proj.")
        .replace(".w3.", ".up_proj.")
        .replace(".w2.", ".down_proj."): tensor
        for name, tensor in load_file(path).items()
    }
    whole = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for prefix in sorted({name.split(".experts.")[0] for name in tensors if ".experts." in name}):
        count = sum(name.startswith(f"{prefix}.experts.") for name in tensors) // 3

        def stacked(part: str, prefix: str = prefix, count: int = count) -> torch.Tensor:
            return torch.stack([tensors[f"{prefix}.experts.{expert}.{part}.weight"] for expert in range(count)])

        whole[f"{prefix}.experts.gate_up_proj"] = torch.cat([stacked("gate_proj"), stacked("up_proj")], dim=1)
        whole[f"{prefix}.experts.down_proj"] = stacked("down_proj")
    save_file(whole, path, metadata={"format": "pt"})
