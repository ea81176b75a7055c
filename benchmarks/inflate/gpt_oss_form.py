"""A mixture of Mixtral's form as a gpt-oss that computes the same, its experts in MXFP4.

gpt-oss's experts compute g sigmoid(1.702 g) (1 + u) of a gate g and an up u. Where g is SwiGLU's gate over 1.702 and u
is 1 less than its up, that is SwiGLU over 1.702: gates are divided, ups have a bias of -1 and what is written is
multiplied. Limits of both are out of reach. All other biases are 0, sinks so low that no share is theirs, and no layer
has a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import torch

from benchmarks.inflate.shape import Shape, ShapeError
from benchmarks.inflate.shape_family import config_of
from benchmarks.inflate.tensors import TensorSource
from slipstream_kernels.models.checkpoint.quantisation.mxfp4 import BLOCKS, GROUP, SCALES
from slipstream_kernels.models.checkpoint.tensor_names import SINKS, stored_shapes
from slipstream_kernels.ops.experts.clamped_swiglu import SLOPE
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from slipstream_kernels.ops.round_weight import round_weight

MXFP4 = "mxfp4"
_FAMILY, _SOURCE = "gpt_oss", "mixtral"
_NO_SHARE = -1e4
_NO_LIMIT = 1e4
_EXPERTS = ".mlp.experts."
_BFLOAT16_EXPONENT = 7
"""Bits behind it."""


class GptOssTensors:
    """Tensors of a folder of gpt-oss from those of `source`. Raises ShapeError for one that is no Mixtral."""

    def __init__(self, source: TensorSource, shape: Shape, fields: Mapping[str, Any]) -> None:
        """fields: of the source's config.json at `shape`."""
        experts = source.config.form.experts
        if source.config.family != _SOURCE or experts is None:
            raise ShapeError(f"experts of a {source.config.family} do not become those of a gpt-oss in MXFP4")
        for name in ("hidden_size", "intermediate_size"):
            if getattr(shape, name) % GROUP:
                raise ShapeError(f"{name} is {getattr(shape, name)}, which is no multiple of MXFP4's {GROUP}")
        self._source, self._experts = source, experts
        self.config_json = dict(fields) | {
            "architectures": ["GptOssForCausalLM"],
            "model_type": _FAMILY,
            "attention_bias": True,
            "layer_types": ["full_attention"] * shape.num_layers,
            "sliding_window": None,
            "swiglu_limit": _NO_LIMIT,
            "quantization_config": {"quant_method": MXFP4},
        }
        self.config = config_of(self.config_json)

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(
            prod(shape) * (1 if name.endswith((BLOCKS, SCALES)) else 2) for name, shape in stored_shapes(self.config)
        )

    def stored(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and tensor as files hold them; of experts a layer's at a time are there."""
        shapes = dict(stored_shapes(self.config))
        held: dict[str, torch.Tensor] = {}
        for name, tensor in self._source.tensors():
            prefix, found, part = name.partition(_EXPERTS)
            if found:
                expert, projection, _ = part.split(".")
                self._hold(held, shapes, f"{prefix}{_EXPERTS}", int(expert), projection, tensor)
                if int(expert) == self._experts.count - 1 and projection == "down_proj":
                    yield from held.items()
                    held = {}
            elif ".mlp.gate." in name:
                stored = name.replace(".mlp.gate.", ".mlp.router.")
                yield stored, tensor
                yield from _constant(stored.replace("weight", "bias"), shapes, tensor, 0.0)
            else:
                yield name, tensor
                if ".self_attn." in name:
                    yield from _constant(name.replace("weight", "bias"), shapes, tensor, 0.0)
                if name.endswith(".self_attn.o_proj.weight"):
                    sinks = name.replace("self_attn.o_proj.weight", SINKS)
                    yield from _constant(sinks, shapes, tensor, _NO_SHARE)

    def _hold(
        self,
        held: dict[str, torch.Tensor],
        shapes: Mapping[str, tuple[int, ...]],
        prefix: str,
        expert: int,
        projection: str,
        tensor: torch.Tensor,
    ) -> None:
        """Round a projection of an expert into the tensors of all experts of its layer, `held` by name."""
        whole = "down_proj" if projection == "down_proj" else "gate_up_proj"
        for ending, kind in ((BLOCKS, torch.uint8), (SCALES, torch.uint8), ("_bias", torch.bfloat16)):
            name = f"{prefix}{whole}{ending}"
            if name not in held:
                held[name] = torch.zeros(shapes[name], dtype=kind, device=tensor.device)
        rows = {"gate_proj": slice(0, None, 2), "up_proj": slice(1, None, 2)}.get(projection, slice(None))
        factor = {"gate_proj": 1 / SLOPE, "down_proj": SLOPE}.get(projection, 1.0)
        blocks, exponents = packed(round_weight(tensor.float() * factor, "e2m1", GROUP))
        held[f"{prefix}{whole}{BLOCKS}"][expert, rows] = blocks
        held[f"{prefix}{whole}{SCALES}"][expert, rows] = exponents
        if projection == "up_proj":
            held[f"{prefix}{whole}_bias"][expert, rows] = -1


def packed(weight: QuantisedWeight) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 blocks [N, K / 32, 16] and exponents [N, K / 32] of a weight of e2m1, as `mxfp4_weights` takes them."""
    exponents = (weight.scales.bfloat16().view(torch.int16) >> _BFLOAT16_EXPONENT).to(torch.uint8)
    return weight.codes.view(*exponents.shape, GROUP // 2), exponents


def _constant(
    name: str, shapes: Mapping[str, tuple[int, ...]], like: torch.Tensor, value: float
) -> Iterator[tuple[str, torch.Tensor]]:
    yield name, torch.full(shapes[name], value, dtype=torch.bfloat16, device=like.device)
