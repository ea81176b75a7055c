"""Tensors of a model that nobody trained, for its speed and its bits."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.mxfp4 import GROUP
from slipstream_kernels.models.checkpoint.tensor_names import SINKS, expected_shapes, stored_name
from slipstream_kernels.models.checkpoint.tied_head import EMBEDDING
from slipstream_kernels.models.gpu.forward.weight_places import AnyTensor
from slipstream_kernels.ops.round_weight import round_weight

_WEIGHT = ".weight"


def random_tensors(config: ModelConfig, generator: torch.Generator) -> Iterator[tuple[str, AnyTensor]]:
    """Of all `expected_shapes`, on the generator's device, rounded where `config` says that they are quantised."""
    for name, shape in expected_shapes(config):
        yield name, _rounded(config, name, _drawn(config, name, shape, generator))


def _drawn(config: ModelConfig, name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    tensor = torch.empty(shape, dtype=torch.bfloat16, device=generator.device)
    tensor.normal_(generator=generator)
    if "norm" in name:
        tensor.mul_(0.1).add_(1)
    elif name.endswith((".bias", SINKS)):
        tensor.mul_(0.1)
    elif "o_proj" in name or "down_proj" in name:
        # Each layer adds two of these to the residual stream.
        tensor.mul_((2 * config.num_layers * shape[1]) ** -0.5)
    elif "embed" not in name or config.tie_word_embeddings:
        tensor.mul_(shape[1] ** -0.5)
    return tensor


def _rounded(config: ModelConfig, name: str, tensor: torch.Tensor) -> AnyTensor:
    quantisation = config.quantisation
    if quantisation is None or tensor.dim() != 2 or name == EMBEDDING or not name.endswith(_WEIGHT):
        return tensor
    if config.packed_experts:
        return round_weight(tensor, "e2m1", GROUP) if ".experts." in name else tensor
    scheme = quantisation.scheme_of(stored_name(config, name).removesuffix(_WEIGHT))
    if scheme is None:
        return tensor
    return round_weight(tensor, scheme.number, scheme.group_of(tensor.shape[1]), zeros=not scheme.symmetric)
