"""MLP speculator checkpoints with random weights, in every layout that public ones have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Stages = dict[str, list[torch.Tensor]]
"""By kind, each stage's tensor."""


@dataclass(frozen=True)
class Layout:
    """How one checkpoint differs from the plainest. shared: kinds that stages share; of them a file may have copies."""

    shared: tuple[str, ...] = ()
    copies: bool = False
    prefix: str = "speculator."
    inner: int = 24
    binary: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)


_ALL = ("emb", "proj", "ln", "head")
LAYOUTS = {
    "nothing shared": Layout(),
    "nothing shared, as large as the target": Layout(inner=0),
    "pickled": Layout(binary=True, prefix=""),
    "tied, input scaled": Layout(_ALL, config={"tie_weights": True, "scale_input": True}),
    "tied, with copies": Layout(_ALL, copies=True, config={"tie_weights": True}),
    "tied by the older name": Layout(_ALL, config={"tie_wts": True}),
    "one embedding": Layout(("emb",), config={"tie_emb": True}),
    "one head": Layout(("head",), config={"tie_head": True}),
    "one transition": Layout(("proj", "ln"), config={"tie_transition": True}),
    "width by its other name": Layout(config={"emb_dim": None, "hidden_size": 32}),
}


def write_speculator(
    folder: Path, layout: Layout, *, stages: int = 3, width: int = 32, vocab: int = 96, seed: int = 0, **config: Any
) -> Stages:
    """Write a checkpoint; the weights of every stage come back. `config` goes into config.json."""
    generator = torch.Generator().manual_seed(seed)
    inner = layout.inner or width
    shapes = {
        "emb.{}.weight": (vocab, inner),
        "proj.{}.weight": (inner, inner),
        "ln.{}.weight": (inner,),
        "ln.{}.bias": (inner,),
        "head.{}.weight": (vocab, inner),
    }
    made: Stages = {name: [] for name in shapes}
    tensors: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        kind = name.partition(".")[0]
        first = 1 if kind == "proj" else 0
        for stage in range(stages):
            if kind in layout.shared and stage > first:
                made[name].append(made[name][first])
            else:
                size = (inner, width) if kind == "proj" and stage == 0 else shape
                made[name].append(torch.randn(size, generator=generator) / (size[-1] ** 0.5 if len(size) > 1 else 1))
            if layout.copies or kind not in layout.shared or stage <= first:
                tensors[layout.prefix + name.format(stage)] = made[name][-1].clone()
    document = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "emb_dim": width,
        "inner_dim": layout.inner,
        "n_predict": stages,
        "n_candidates": 5,
        "top_k_tokens_per_head": [4, 3, 2, 2][:stages],
        "vocab_size": vocab,
        **layout.config,
        **config,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document))
    if layout.binary:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors")
    return made
