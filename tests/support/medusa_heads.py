"""Medusa checkpoints with random weights, in every layout that public ones have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class Medusa:
    """What a checkpoint computes. layers: weight and bias of each layer, by head. ids: the target's, of the rows."""

    layers: list[list[tuple[torch.Tensor, torch.Tensor | None]]]
    rows: list[torch.Tensor]
    ids: torch.Tensor


@dataclass(frozen=True)
class Layout:
    """How one checkpoint differs from the plainest of its kind.

    blocks: vLLM's names. reused: all layers of a head are one module, of which the file has `copies` or it `once`.
    rows: where scoring rows are: each head's `own`, the `target`'s, head 0's for all (`first`, or `copies` of it), or
    `lm_head`. mapped: tokens of the map; then the rows are `cut` to it or not. whole: a model is around the heads.
    """

    blocks: bool = False
    layers: int = 1
    reused: str = ""
    bias: bool = True
    rows: str = "own"
    mapped: int | None = None
    cut: bool = True
    prefix: str = ""
    whole: bool = False
    file: str = "medusa_lm_head.pt"
    config: Mapping[str, Any] = field(default_factory=dict)


def _vllm(**changes: Any) -> Layout:
    config = {"model_type": "medusa", "num_heads": 3, "num_hidden_layers": changes.get("layers", 1)}
    own = {"hidden_size": 32, "vocab_size": 96} | changes.pop("config", {})
    return Layout(**{"blocks": True, "bias": False, "file": "model.safetensors", "config": config | own} | changes)


_ONE = {"original_lm_head": True}
_WHOLE = {"whole": True, "prefix": "medusa_head.", "file": "model.safetensors"}
LAYOUTS = {
    "the original, of whose heads the config knows two": Layout(config={"medusa_num_heads": 2}),
    "safetensors": Layout(file="medusa_lm_head.safetensors"),
    "TGI, rows of the target": Layout(rows="target", file="medusa_lm_head.safetensors"),
    "one module as two layers": Layout(layers=2, reused="copies", config={"medusa_num_layers": 2}),
    "one module, stored once": Layout(
        layers=2, reused="once", file="medusa_lm_head.safetensors", config={"medusa_num_layers": 2}
    ),
    "in a whole model": Layout(**_WHOLE, config={"num_hidden_layers": 12, "num_attention_heads": 2}),
    "in a whole model, whose rows they take": Layout(**_WHOLE, rows="lm_head", config={"num_hidden_layers": 12}),
    "vLLM": _vllm(),
    "vLLM, biases": _vllm(bias=True, config={"medusa_fc_bias": True}),
    "vLLM, biases that the config does not know": _vllm(bias=True),
    "vLLM, two layers": _vllm(layers=2),
    "vLLM, prefix": _vllm(prefix="medusa_heads."),
    "vLLM, rows of the first": _vllm(rows="first", config=_ONE),
    "vLLM, copies of the first's rows": _vllm(rows="copies", config=_ONE),
    "vLLM, lm_head": _vllm(rows="lm_head", config=_ONE),
    "vLLM, map": _vllm(mapped=40, config={"truncated_vocab_size": 40}),
    "vLLM, map, rows of all": _vllm(mapped=40, cut=False, config={"truncated_vocab_size": 40}),
    "vLLM, map that is not used": _vllm(mapped=40, cut=False),
    "vLLM, logit scale": _vllm(config={"logit_scale": 0.5}),
}


def write_medusa(
    folder: Path, layout: Layout, *, heads: int = 3, hidden: int = 32, vocab: int = 96, seed: int = 0, **config: Any
) -> Medusa:
    """Write a checkpoint beside `write_target`'s in `folder / "../target"`. `config` goes into config.json."""
    made = _weights(folder, layout, heads, hidden, vocab, seed)
    tensors = dict(_layer_tensors(layout, made))
    wide = layout.mapped is not None and not layout.cut
    stored = made.rows
    if wide:
        stored = [torch.zeros(vocab, hidden).index_copy(0, made.ids, rows) for rows in made.rows]
    names = [f"lm_heads.{head}.weight" if layout.blocks else f"{head}.{layout.layers}.weight" for head in range(heads)]
    named = {"own": names, "copies": names, "first": names[:1], "lm_head": ["lm_head.weight"], "target": []}[
        layout.rows
    ]
    tensors |= {name: rows.clone() for name, rows in zip(named, stored, strict=False)}
    if layout.mapped is not None:
        tensors["token_map"] = made.ids
    tensors = {(name if name == "lm_head.weight" else layout.prefix + name): each for name, each in tensors.items()}
    if layout.whole:
        tensors["model.embed_tokens.weight"] = torch.zeros(vocab, hidden)
        tensors.setdefault("lm_head.weight", torch.zeros(vocab, hidden))
    folder.mkdir(parents=True, exist_ok=True)
    own = {} if layout.blocks else {"base_model_name_or_path": "x", "medusa_num_layers": layout.layers}
    document = {**own, **layout.config, **config}
    (folder / "config.json").write_text(json.dumps(document))
    save = save_file if layout.file.endswith("safetensors") else torch.save
    save({name: each.contiguous() for name, each in tensors.items()}, folder / layout.file)
    if layout.mapped is not None and "truncated_vocab_size" not in layout.config:
        return Medusa(made.layers, stored, torch.arange(vocab))
    return made


def _weights(folder: Path, layout: Layout, heads: int, hidden: int, vocab: int, seed: int) -> Medusa:
    generator = torch.Generator().manual_seed(seed)

    def layer() -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = torch.randn(hidden, hidden, generator=generator) / hidden**0.5
        return weight, torch.randn(hidden, generator=generator) if layout.bias else None

    layers = []
    for _ in range(heads):
        first = layer()
        layers.append([first, *(first if layout.reused else layer() for _ in range(layout.layers - 1))])
    ids = torch.arange(vocab)
    if layout.mapped is not None:
        ids = torch.randperm(vocab, generator=generator)[: layout.mapped]
    rows = [torch.randn(len(ids), hidden, generator=generator) for _ in range(heads)]
    if layout.rows == "target":
        from support.eagle_heads import write_target

        rows = [write_target(folder.parent / "target", hidden, vocab)["lm_head.weight"]] * heads
    elif layout.rows != "own":
        rows = rows[:1] * heads
    return Medusa(layers, rows, ids)


def _layer_tensors(layout: Layout, made: Medusa) -> dict[str, torch.Tensor]:
    tensors = {}
    for head, layers in enumerate(made.layers):
        for index, (weight, bias) in enumerate(layers[:1] if layout.reused == "once" else layers):
            name = f"blocks.{head}.layers.{index}" if layout.blocks else f"{head}.{index}.linear"
            tensors[f"{name}.weight"] = weight.clone()
            if bias is not None:
                tensors[f"{name}.bias"] = bias.clone()
    return tensors
