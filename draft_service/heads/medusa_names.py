"""How Medusa checkpoints name their tensors, how many heads and layers they hold, and what each tensor must be.

The original: layers `{head}.{layer}.linear` and scoring rows `{head}.{layers}`. vLLM's: `blocks.{head}.layers.{layer}`
and `lm_heads.{head}`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from draft_service.heads.expected import check_tensors
from slipstream_kernels.models.checkpoint.config_fields import CheckpointError, flag, size

SHARED_ROWS = "lm_head.weight"
"""Scoring rows of all heads that have none of their own."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class MedusaNames:
    """Which tensors a checkpoint has.

    blocks: by vLLM's names. stored_layers: those of each head that are there; a single one stands for all `layers`,
    since the original runs the same module again. own_rows: the heads have scoring rows. one_for_all: those of head 0
    serve all.
    """

    blocks: bool
    heads: int
    layers: int
    stored_layers: int
    own_rows: bool
    one_for_all: bool

    @classmethod
    def of(cls, config: Mapping[str, Any], tensors: Tensors) -> MedusaNames:
        """Counted from the tensors, at least what the config says: there may be more heads than that."""
        blocks = any(name.startswith("blocks.") for name in tensors)
        layer_name = r"blocks\.(\d+)\.layers\.(\d+)\.weight" if blocks else r"(\d+)\.(\d+)\.linear\.weight"
        rows_name = r"lm_heads\.\d+\.weight" if blocks else r"\d+\.\d+\.weight"
        there = [found.groups() for name in tensors if (found := re.fullmatch(layer_name, name))]
        said = size(config, "medusa_num_heads", size(config, "num_heads", 1) if blocks else 1)
        stored = max(1, len({layer for _, layer in there}))
        layers = size(config, "medusa_num_layers", size(config, "num_hidden_layers", stored) if blocks else stored)
        return cls(
            blocks=blocks,
            heads=max(said, len({head for head, _ in there})),
            layers=layers,
            stored_layers=1 if stored == 1 and not blocks else layers,
            own_rows=any(re.fullmatch(rows_name, name) for name in tensors),
            one_for_all=blocks and flag(config, "original_lm_head"),
        )

    def layer(self, head: int, layer: int, part: str) -> str:
        """part: `weight` or `bias`."""
        stored = min(layer, self.stored_layers - 1)
        return f"blocks.{head}.layers.{stored}.{part}" if self.blocks else f"{head}.{stored}.linear.{part}"

    def rows(self, head: int) -> str:
        """The scoring rows that a head uses."""
        if not self.own_rows:
            return SHARED_ROWS
        return self.own(0 if self.one_for_all else head)

    def own(self, head: int) -> str:
        """The scoring rows that belong to a head."""
        return f"lm_heads.{head}.weight" if self.blocks else f"{head}.{self.layers}.weight"

    def check(self, config: Mapping[str, Any], tensors: Tensors) -> None:
        """Raises CheckpointError, naming the tensor, unless every one is expected, there and of the right shape."""
        first = tensors.get(self.layer(0, 0, "weight"))
        width = -1 if first is None or first.ndim != 2 else first.shape[0]
        hidden = width if config.get("hidden_size") is None else size(config, "hidden_size")
        scored = tensors.get(self.rows(0))
        rows = (-1 if scored is None else len(scored), hidden)
        every = [(head, layer) for head in range(self.heads) for layer in range(self.stored_layers)]
        biases: dict[str, tuple[int, ...]] = {self.layer(*each, "bias"): (hidden,) for each in every}
        required: dict[str, tuple[int, ...]] = {self.layer(*each, "weight"): (hidden, hidden) for each in every}
        required |= {self.rows(head): rows for head in range(self.heads)}
        if flag(config, "medusa_fc_bias") or not biases.keys().isdisjoint(tensors):
            required |= biases
        spare = {self.own(head): rows for head in range(self.heads)} if self.own_rows and self.one_for_all else {}
        check_tensors("a Medusa checkpoint", tensors, required, spare)
        for name in sorted(spare.keys() & tensors.keys()):
            if not torch.equal(tensors[name], tensors[self.rows(0)]):
                raise CheckpointError(
                    f"{name} differs from {self.rows(0)}, which original_lm_head makes serve all heads"
                )
