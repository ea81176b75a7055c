"""MTP layers with random weights in the layouts that public checkpoints have, inside a target's folder or outside."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class MtpLayout:
    """How one checkpoint differs from the plainest of its kind, `mimo` or `nextn`.

    inside: among the target's tensors, else extracted, as the script for DeepSeek's does. own_rows: each layer has an
    embedding and scoring rows of its own.
    """

    kind: str
    layers: int = 1
    inside: bool = True
    own_rows: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    binary: bool = False


LAYOUTS = {
    "MiMo": MtpLayout("mimo", qkv_bias=True),
    "MiMo, extracted": MtpLayout("mimo", qkv_bias=True, inside=False),
    "MiMo, two layers": MtpLayout("mimo", layers=2),
    "NextN": MtpLayout("nextn", own_rows=True),
    "NextN, extracted": MtpLayout("nextn", inside=False, head_norms=True),
    "NextN, extracted, rows of its own": MtpLayout("nextn", inside=False, own_rows=True, binary=True),
    "NextN, three layers": MtpLayout("nextn", layers=3, own_rows=True, qkv_bias=True),
}

_STORED = {
    "mimo": {
        "enorm": "token_layernorm",
        "hnorm": "hidden_layernorm",
        "projection": "input_proj",
        "norm": "final_layernorm",
    },
    "nextn": {"projection": "eh_proj", "norm": "shared_head.norm"},
}


def layer_tensors(config: dict[str, Any], layout: MtpLayout, generator: torch.Generator) -> Tensors:
    """One layer's random weights in bfloat16, norms and biases far from their neutral values."""
    hidden, middle, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    dim = config.get("head_dim", hidden // heads)
    sizes: dict[str, tuple[int, ...]] = {
        f"{name}.weight": (hidden,)
        for name in ("enorm", "hnorm", "norm", "input_layernorm", "post_attention_layernorm")
    }
    sizes["projection.weight"] = (hidden, 2 * hidden)
    for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        sizes[f"self_attn.{name}_proj.weight"] = (count * dim, hidden)
        if layout.qkv_bias:
            sizes[f"self_attn.{name}_proj.bias"] = (count * dim,)
    if layout.head_norms:
        sizes |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    sizes["self_attn.o_proj.weight"] = (hidden, heads * dim)
    sizes |= {f"mlp.{name}_proj.weight": (middle, hidden) for name in ("gate", "up")}
    sizes["mlp.down_proj.weight"] = (hidden, middle)
    tensors: Tensors = {}
    for name, size in sizes.items():
        noise = torch.randn(size, generator=generator)
        scaled = 1 + 0.3 * noise if "norm" in name else noise if len(size) == 1 else noise / size[-1] ** 0.5
        tensors[name] = scaled.bfloat16()
    return tensors


def write_mtp(target: Path, layout: MtpLayout, folder: Path | None = None, seed: int = 0) -> list[Tensors]:
    """Write layers for the model in `target`, into it or into `folder`; each one's tensors come back.

    The projection is as the layout has it: MiMo's for state and embedding, NextN's for embedding and state.
    """
    config = json.loads((target / "config.json").read_text())
    generator = torch.Generator().manual_seed(seed)
    layers = [layer_tensors(config, layout, generator) for _ in range(layout.layers)]
    put_mtp(target, layout, layers, folder)
    return layers


def put_mtp(target: Path, layout: MtpLayout, layers: list[Tensors], folder: Path | None = None) -> None:
    """Write the given layers as `write_mtp` does."""
    document = json.loads((target / "config.json").read_text()) | {"num_nextn_predict_layers": len(layers)}
    there = load_file(target / "model.safetensors") if layout.inside or layout.own_rows else {}
    first = document["num_hidden_layers"] if layout.inside else 0
    stored: Tensors = {}
    for index, tensors in enumerate(layers):
        prefix = f"model.mtp_layers.{index}." if layout.kind == "mimo" else f"model.layers.{first + index}."
        for name, tensor in tensors.items():
            begin, dot, end = name.partition(".")
            stored[prefix + _STORED[layout.kind].get(begin, begin) + dot + end] = tensor
        if layout.own_rows:
            stored[prefix + "embed_tokens.weight"] = there["model.embed_tokens.weight"].clone()
            stored[prefix + "shared_head.head.weight"] = there["lm_head.weight"].clone()
    if layout.inside:
        stored |= there
        folder = target
    else:
        document["num_hidden_layers"] = len(layers)
    assert folder is not None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document))
    if layout.binary:
        torch.save(stored, folder / "pytorch_model.bin")
    elif layout.inside:
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        save_file(stored, folder / "nextn_layer_parameters.safetensors")
        index_of = dict.fromkeys(stored, "nextn_layer_parameters.safetensors")
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index_of}))


def make_oracle(target: Path) -> None:
    """Make an untied MiMo model one whose next token depends on the last alone, with a layer that knows it.

    The model's layers add nothing to the stream. So does the MTP layer's decoder, behind the embedding of its token.
    """
    path = target / "model.safetensors"
    model = load_file(path)
    save_file({name: _silenced(name, tensor) for name, tensor in model.items()}, path, metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    layer = layer_tensors(config, LAYOUTS["MiMo"], torch.Generator().manual_seed(1))
    layer = {name: _silenced(name, tensor) for name, tensor in layer.items()}
    identity = torch.eye(config["hidden_size"])
    layer["projection.weight"] = torch.cat([torch.zeros_like(identity), identity], dim=1).bfloat16()
    layer["enorm.weight"] = torch.ones(config["hidden_size"]).bfloat16()
    layer["norm.weight"] = model["model.norm.weight"].clone()
    put_mtp(target, LAYOUTS["MiMo"], [layer])


def _silenced(name: str, tensor: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(tensor) if name.endswith(("o_proj.weight", "down_proj.weight")) else tensor
