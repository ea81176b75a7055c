"""EAGLE checkpoints with random weights, in every layout that public ones have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class Layout:
    """How one checkpoint differs from the plainest of its family.

    drop, rename: tensors left out, and beginnings of names replaced when written. norms: extra norms, by semantic name.
    """

    family: str
    layers: int = 1
    fc_bias: bool = False
    qkv_bias: bool = False
    head_norms: bool = False
    norms: tuple[str, ...] = ()
    states: int = 3
    draft_vocab: int | None = 40
    own_embedding: bool = False
    own_head: bool = True
    target_hidden: int | None = None
    maps: tuple[str, ...] = ("d2t", "t2d")
    rename: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    nested: bool = False
    binary: bool = False
    head_dim: int | None = None


_SPECULATORS = {"fc.": "fusion_fc.", "layers.0.": "transformer.", "enorm.": "embedding_layernorm."}
EAGLE1 = {
    "no bias": Layout("eagle", binary=True, config={"bias": False}),
    "bias, as the key's absence says": Layout("eagle", fc_bias=True, binary=True),
    "query, key and value biases": Layout("eagle", qkv_bias=True, config={"qkv_bias": True, "bias": False}),
    "norms on both inputs": Layout("eagle", norms=("enorm", "hnorm"), config={"add_para_norm": True}),
    "two layers": Layout("eagle", layers=2, fc_bias=True),
    "model prefix": Layout("eagle", rename={"": "model."}),
    "speculators": Layout(
        "eagle", fc_bias=True, nested=True, rename=_SPECULATORS, config={"speculators_model_type": "eagle"}
    ),
    "speculators with norms": Layout(
        "eagle",
        norms=("enorm", "layers.0.input_layernorm", "norm"),
        nested=True,
        rename=_SPECULATORS | {"norm.": "pre_lm_head_layernorm."},
        config={"speculators_model_type": "eagle", "layernorms": True},
    ),
    "HASS research names": Layout(
        "eagle",
        norms=("enorm", "layers.0.input_layernorm", "norm"),
        rename={
            "enorm.": "embed_layernorm.",
            "layers.0.input_layernorm.": "hidden_layernorm.",
            "norm.": "lm_head_layernorm.",
        },
    ),
}
_MIDLAYER = {"layers.0.": "midlayer."}
_NESTED3 = {"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]}
EAGLE3 = {
    "midlayer, offsets and mask": Layout("eagle3", binary=True, rename=_MIDLAYER),
    "layers.0": Layout("eagle3"),
    "model.layers.0": Layout("eagle3", rename={"layers.": "model.layers."}),
    "offsets alone": Layout("eagle3", maps=("d2t",), rename=_MIDLAYER),
    "mask alone": Layout("eagle3", maps=("t2d",), rename=_MIDLAYER),
    "whole vocabulary": Layout("eagle3", draft_vocab=None, maps=()),
    "the target's scores": Layout("eagle3", draft_vocab=None, own_head=False, maps=()),
    "tied": Layout(
        "eagle3", draft_vocab=None, own_head=False, own_embedding=True, maps=(), config={"tie_word_embeddings": True}
    ),
    "own embedding": Layout("eagle3", own_embedding=True, rename=_MIDLAYER),
    "wider target": Layout(
        "eagle3", own_embedding=True, target_hidden=48, rename=_MIDLAYER, config={"target_hidden_size": 48}
    ),
    "one boundary": Layout("eagle3", states=1),
    "two layers": Layout("eagle3", layers=2),
    "norms of heads, wide heads": Layout("eagle3", head_norms=True, head_dim=24),
    "query, key and value biases": Layout("eagle3", qkv_bias=True),
    "speculators": Layout("eagle3", nested=True, own_embedding=True, config=_NESTED3),
    "residual after the norm": Layout("eagle3", nested=True, config=_NESTED3 | {"norm_before_residual": True}),
    "norm before fc": Layout("eagle3", norms=("input_norm",), config={"norm_before_fc": True}),
    "EAGLE-3.1": Layout(
        "eagle3", norms=("fc_norm.0", "fc_norm.1", "fc_norm.2"), config={"fc_norm": True, "norm_output": True}
    ),
    "speculators, states after the norm": Layout("eagle3", nested=True, config=_NESTED3 | {"norm_output": True}),
    "SpecForge": Layout("eagle3", rename=_MIDLAYER, config={"norm_output": True}),
    "long context": Layout(
        "eagle3",
        config={
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        },
    ),
    "theta of transformers 5": Layout("eagle3", config={"rope_parameters": {"rope_theta": 500.0}}),
}


@dataclass(frozen=True)
class Shape:
    """Sizes of a checkpoint and its target."""

    hidden: int = 32
    intermediate: int = 48
    heads: int = 4
    kv_heads: int = 2
    vocab: int = 96


def semantic_tensors(layout: Layout, shape: Shape, seed: int) -> dict[str, torch.Tensor]:
    """Random weights by EAGLE's own names, biases and norms far from their neutral values."""
    generator = torch.Generator().manual_seed(seed)
    sizes = _sizes(layout, shape)
    tensors: dict[str, torch.Tensor] = {}
    for name, size in sizes.items():
        noise = torch.randn(size, generator=generator)
        is_norm = len(size) == 1 and not name.endswith("bias")
        tensors[name] = 1 + 0.3 * noise if is_norm else noise / (1 if len(size) == 1 else size[-1] ** 0.5)
    if layout.family == "eagle3" and layout.draft_vocab is not None:
        ids = torch.randperm(shape.vocab, generator=generator)[: layout.draft_vocab].sort().values
        maps = {"d2t": ids - torch.arange(layout.draft_vocab), "t2d": torch.zeros(shape.vocab, dtype=torch.bool)}
        maps["t2d"][ids] = True
        tensors |= {name: maps[name] for name in layout.maps}
    return tensors


def _sizes(layout: Layout, shape: Shape) -> dict[str, tuple[int, ...]]:
    hidden, states = shape.hidden, layout.target_hidden or shape.hidden
    eagle3 = layout.family == "eagle3"
    sizes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, layout.states * states if eagle3 else hidden + states),
    }
    for layer in range(layout.layers):
        sizes |= _layer_sizes(layout, shape, layer)
    if eagle3:
        sizes["layers.0.hidden_norm.weight"] = sizes["norm.weight"] = (hidden,)
        if layout.own_head:
            sizes["lm_head.weight"] = (layout.draft_vocab or shape.vocab, hidden)
    if layout.own_embedding or not eagle3:
        sizes["embed_tokens.weight"] = (shape.vocab, hidden)
    if layout.fc_bias:
        sizes["fc.bias"] = (hidden,)
    widths = {"input_norm": layout.states * states, "hnorm": states}
    for norm in layout.norms:
        sizes[f"{norm}.weight"] = (states if norm.startswith("fc_norm") else widths.get(norm, hidden),)
    return sizes


def _layer_sizes(layout: Layout, shape: Shape, layer: int) -> dict[str, tuple[int, ...]]:
    hidden, dim = shape.hidden, layout.head_dim or shape.hidden // shape.heads
    eagle3 = layout.family == "eagle3"
    sizes: dict[str, tuple[int, ...]] = {}
    prefix = f"layers.{layer}."
    width = 2 * hidden if eagle3 and layer == 0 else hidden
    for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        sizes[f"{prefix}self_attn.{name}_proj.weight"] = (heads * dim, width)
        if layout.qkv_bias:
            sizes[f"{prefix}self_attn.{name}_proj.bias"] = (heads * dim,)
    sizes[f"{prefix}self_attn.o_proj.weight"] = (hidden, shape.heads * dim)
    sizes[f"{prefix}mlp.gate_proj.weight"] = sizes[f"{prefix}mlp.up_proj.weight"] = (shape.intermediate, hidden)
    sizes[f"{prefix}mlp.down_proj.weight"] = (hidden, shape.intermediate)
    sizes[f"{prefix}post_attention_layernorm.weight"] = (hidden,)
    if eagle3 or layer > 0:
        sizes[f"{prefix}input_layernorm.weight"] = (hidden,)
    if layout.head_norms:
        sizes[f"{prefix}self_attn.q_norm.weight"] = sizes[f"{prefix}self_attn.k_norm.weight"] = (dim,)
    return sizes


def write_head(
    folder: Path, layout: Layout, shape: Shape | None = None, seed: int = 0, **config: Any
) -> dict[str, torch.Tensor]:
    """Write a checkpoint; the tensors come back by their semantic names. `config` goes into config.json."""
    shape = shape or Shape()
    tensors = semantic_tensors(layout, shape, seed)
    layer: dict[str, Any] = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": layout.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-5,
        "vocab_size": shape.vocab,
        "hidden_act": "silu",
    }
    if layout.head_dim is not None:
        layer["head_dim"] = layout.head_dim
    outer: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], **layout.config, **config}
    if layout.draft_vocab is not None and layout.family == "eagle3":
        outer["draft_vocab_size"] = layout.draft_vocab
    whole = {"transformer_layer_config": layer, **outer} if layout.nested else {**layer, **outer}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(whole))
    stored = {_stored_name(name, layout.rename): tensor.contiguous() for name, tensor in tensors.items()}
    if layout.binary:
        torch.save(stored, folder / "pytorch_model.bin")
    else:
        save_file(stored, folder / "model.safetensors")
    return tensors


def write_target(
    folder: Path, hidden: int = 32, vocab: int = 96, *, tied: bool = False, **changes: Any
) -> dict[str, torch.Tensor]:
    """The part of a target's folder that heads share. `changes` go into config.json."""
    generator = torch.Generator().manual_seed(99)
    names = ["model.embed_tokens.weight", "lm_head.weight"][: 1 if tied else 2]
    tensors = {name: torch.randn(vocab, hidden, generator=generator) for name in names}
    config = {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": 64,
        "num_hidden_layers": 12,
        "num_attention_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        **changes,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return tensors


def _stored_name(name: str, rename: Mapping[str, str]) -> str:
    begins = [begin for begin in rename if name.startswith(begin)]
    longest = max(begins, key=len, default=None)
    return name if longest is None else rename[longest] + name[len(longest) :]
