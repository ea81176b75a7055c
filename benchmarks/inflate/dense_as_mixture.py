"""A dense model as a mixture of experts that computes the same: parts of each feed-forward network, all of them chosen.

SwiGLU is a sum over intermediate coordinates. An expert has as many of them as any other, in their order, and what it
writes counts as often as there are experts, since each weighs one part in so many: the router scores all alike. Such a
mixture has Mixtral's form, and is widened like any other (see `ExpertLayout`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from benchmarks.inflate.shape import Shape, ShapeError
from slipstream_kernels.models.checkpoint.expert_form import ExpertForm
from slipstream_kernels.models.checkpoint.model_config import ModelConfig

FAMILY = "mixtral"
_MLP = ".mlp."


def as_mixture(source: ModelConfig, shape: Shape) -> ModelConfig:
    """The form of `source` where `shape` has experts and it has none: as many as a token has there.

    Raises ShapeError where they do not divide the intermediate size, or weights of 1 / experts would be rounded.
    """
    parts = shape.experts_per_token
    if not shape.experts or source.form.experts is not None:
        return source
    if source.intermediate_size % parts or parts & (parts - 1):
        raise ShapeError(f"an intermediate size of {source.intermediate_size} is not divided among {parts} experts")
    size, layers = source.intermediate_size // parts, (True,) * source.num_layers
    experts = ExpertForm(count=parts, chosen=parts, size=size, layers=layers, normalised=True)
    return replace(source, family=FAMILY, form=replace(source.form, experts=experts))


def as_experts(tensors: Mapping[str, torch.Tensor], mixture: ModelConfig) -> dict[str, torch.Tensor]:
    """Tensors of a dense model by their names as those of `as_mixture`."""
    experts = mixture.form.experts
    assert experts is not None
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        head, _, tail = name.partition(_MLP)
        if not tail:
            found[name] = tensor
            continue
        written = tail.startswith("down_proj")
        for expert, part in enumerate(tensor.split(experts.size, dim=1 if written else 0)):
            found[f"{head}{_MLP}experts.{expert}.{tail}"] = part * experts.count if written else part
        found[f"{head}{_MLP}gate.weight"] = tensor.new_zeros(experts.count, mixture.hidden_size)
    return found
