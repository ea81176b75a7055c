"""Room for the layers of experts of one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.experts.count_awake import parts_of
from slipstream_kernels.ops.gpu.experts.group_rows import (
    LEAST_TOKENS,
    WORDS,
    ExpertGroups,
    are_grouped,
    most_blocks,
    tokens_of,
)

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype]]
_PREFIX = "expert_"


@dataclass(frozen=True, slots=True)
class ExpertBuffers:
    """Tensors of a pass over `rows` rows; a pair is a row and one of its experts."""

    scores: torch.Tensor
    """float32 [rows, scores of the router]"""
    ids: torch.Tensor
    """int32 [layers with experts, rows, chosen]"""
    awake: torch.Tensor
    """int32 [layers with experts, parts], see `count_awake`"""
    weights: torch.Tensor
    """float32 [rows, chosen]"""
    activated: torch.Tensor
    """bfloat16 [pairs, size of the shard]"""
    outputs: torch.Tensor
    """float32 [pairs, hidden]"""
    groups: ExpertGroups | None
    """None: so few pairs are not grouped"""

    @classmethod
    def of(cls, shard: Shard, rows: int, views: Mapping[str, torch.Tensor]) -> ExpertBuffers:
        """From tensors of `expert_shapes`."""
        experts = shard.config.form.experts
        assert experts is not None
        pairs, groups = rows * experts.chosen, None
        if are_grouped(pairs, experts.count, experts.chosen):
            tokens = tokens_of(pairs, experts.count)
            blocks = views["expert_blocks"][: most_blocks(pairs, experts.count, tokens)]
            groups = ExpertGroups(views["expert_order"], blocks, tokens)
        return cls(
            views["expert_scores"], views["expert_ids"], views["expert_awake"], views["expert_weights"],
            views["expert_activated"], views["expert_outputs"], groups,
        )  # fmt: skip


def expert_shapes(shard: Shard, rows: int) -> Shapes:
    """Shapes and types of the buffers by name; none of a model without experts."""
    experts = shard.config.form.experts
    if experts is None:
        return {}
    pairs, layers = rows * experts.chosen, sum(experts.layers)
    blocks = most_blocks(pairs, experts.count, LEAST_TOKENS)  # a smaller pass may have more blocks, of fewer tokens
    return {
        "expert_scores": ((rows, experts.scores), torch.float32),
        "expert_ids": ((layers, rows, experts.chosen), torch.int32),
        "expert_awake": ((layers, parts_of(experts.count)), torch.int32),
        "expert_weights": ((rows, experts.chosen), torch.float32),
        "expert_activated": ((pairs, experts.size // shard.size), torch.bfloat16),
        "expert_outputs": ((pairs, shard.config.hidden_size), torch.float32),
        "expert_order": ((pairs,), torch.int32),
        "expert_blocks": ((blocks, WORDS), torch.int32),
    }


def is_of_experts(name: str) -> bool:
    """Whether a buffer is one of `expert_shapes`."""
    return name.startswith(_PREFIX)
