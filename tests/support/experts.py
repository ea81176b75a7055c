"""Random experts of small models, in the layouts that folders have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_Tensors = Iterator[tuple[str, torch.Tensor]]
Linear = Callable[..., _Tensors]
"""(name, outputs, inputs) to a module's tensors."""


def has_experts(config: Mapping[str, Any], layer: int) -> bool:
    """Whether a layer of a model of this config.json has experts."""
    if config["model_type"] == "mixtral":
        return True
    step, plain = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", ())
    return config["model_type"].endswith("_moe") and layer not in plain and (layer + 1) % step == 0


def expert_tensors(config: Mapping[str, Any], prefix: str, linear: Linear) -> _Tensors:
    """A layer's router and experts; `prefix` is the layer's."""
    hidden = config["hidden_size"]
    if config["model_type"] == "mixtral":
        prefix, parts, size = prefix + "block_sparse_moe.", ("w1", "w3", "w2"), config["intermediate_size"]
    else:
        prefix, parts, size = prefix + "mlp.", ("gate_proj", "up_proj", "down_proj"), config["moe_intermediate_size"]
    count = config.get("num_experts") or config["num_local_experts"]
    yield from linear(prefix + "gate", count, hidden)
    for expert in range(count):
        yield from network(f"{prefix}experts.{expert}.", parts, hidden, size, linear)
    if shared := config.get("shared_expert_intermediate_size"):
        yield from network(f"{prefix}shared_expert.", parts, hidden, shared, linear)
        yield from linear(prefix + "shared_expert_gate", 1, hidden)


def network(prefix: str, parts: tuple[str, ...], hidden: int, size: int, linear: Linear) -> _Tensors:
    """Gate, up and down of a feed-forward network."""
    for part in parts[:2]:
        yield from linear(prefix + part, size, hidden)
    yield from linear(prefix + parts[2], hidden, size)


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
