"""The weights of a layer of experts on a device, in bfloat16 or packed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import torch

from slipstream_kernels.models.checkpoint.expert_names import PARTS, ROUTER, SHARED_GATE, expert_module
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.mxfp4 import GROUP
from slipstream_kernels.models.checkpoint.tensor_names import stored_name
from slipstream_kernels.models.gpu.forward.weight_places import AnyTensor, Place, quantised_part
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.experts.expert_linear import ExpertMatrix
from slipstream_kernels.ops.gpu.experts.mxfp4_experts import Mxfp4Experts, exponents_of
from slipstream_kernels.ops.gpu.experts.packed_experts import PackedExperts, can_pack_experts
from slipstream_kernels.ops.gpu.gate_up import gate_up_views
from slipstream_kernels.ops.gpu.packed.packed_weight import UNIT, words_of
from slipstream_kernels.ops.quantised_weight import Number, QuantisedWeight, halves

_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(\w+)\.(weight|bias)")
_GATE_UP, _DOWN = PARTS[:2], PARTS[2:]


@dataclass(frozen=True, slots=True)
class ExpertPacking:
    """How a weight of experts is packed: see `PackedExperts`, and of e2m1 `Mxfp4Experts`."""

    number: Number
    group: int
    zeros: bool


@dataclass(frozen=True, slots=True)
class PackedPlace:
    """A part of packed experts; `axis`: along which ranks share the checkpoint's tensor."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    axis: int

    def fill(self, tensor: AnyTensor, shard: Shard) -> None:
        """Write the rank's part of a quantised weight here."""
        assert isinstance(tensor, QuantisedWeight)
        part = quantised_part(tensor, self.axis, shard)
        self.codes.copy_(part.codes.reshape(self.codes.shape))
        self.scales.copy_(part.scales.reshape(self.scales.shape))
        if self.zeros is not None:
            assert part.zeros is not None
            self.zeros.copy_(part.zeros.reshape(self.zeros.shape))


@dataclass(frozen=True, slots=True)
class Mxfp4Place:
    """A part of `Mxfp4Experts`: int32 codes [units, chunks, WORDS], exponents [chunks, units, UNIT]; axis as above."""

    codes: torch.Tensor
    exponents: torch.Tensor
    axis: int

    def fill(self, tensor: AnyTensor, shard: Shard) -> None:
        """Write the rank's part of a quantised weight here."""
        assert isinstance(tensor, QuantisedWeight)
        part = quantised_part(tensor, self.axis, shard)
        self.codes.copy_(words_of(halves(part.codes), "e2m1"))
        self.exponents.copy_(exponents_of(part.scales).unflatten(1, self.exponents.shape[1:]))


ExpertPlace = PackedPlace | Mxfp4Place
"""A part of an expert's weights that are not in bfloat16."""


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Contiguous, bfloat16 but for packed experts; each rank has an equal part of every expert's intermediate size."""

    router: torch.Tensor
    """[experts, hidden], and behind them the shared expert's line if there is one; whole on every rank"""
    gate_up: ExpertMatrix
    """[experts, 2 size, hidden], each in the order of ops/gpu/gate_up.py"""
    down: ExpertMatrix
    """[experts, hidden, size]"""
    router_bias: torch.Tensor | None = None
    """[experts]; biases that a model has not are None"""
    gate_up_bias: torch.Tensor | None = None
    """[experts, 2 size], in the order of gate_up"""
    down_bias: torch.Tensor | None = None
    """[experts, hidden], whole on every rank: the first one adds it"""

    @classmethod
    def empty(cls, shard: Shard, layer: int, device: torch.device | str) -> ExpertWeights:
        """Room for the weights of a layer."""

        def matrix(shape: tuple[int, int, int], packing: ExpertPacking | None) -> ExpertMatrix:
            if packing is None:
                return torch.empty(shape, dtype=torch.bfloat16, device=device)
            if packing.number == "e2m1":
                return Mxfp4Experts.empty(shape, device)
            return PackedExperts.empty(packing.number, shape, packing.group, device, zeros=packing.zeros)

        gate_up, down = _matrices(shard)
        return cls(
            gate_up=matrix(gate_up, expert_packing(shard, layer, _GATE_UP)),
            down=matrix(down, expert_packing(shard, layer, _DOWN)),
            **{name: torch.empty(shape, dtype=torch.bfloat16, device=device) for name, shape in _others(shard).items()},
        )

    def place(self, name: str) -> Place | ExpertPlace | None:
        """Where a tensor of the layer goes, by its name within it; None: it is none of these."""
        count = len(self.gate_up)
        whole = {
            f"{ROUTER}.weight": self.router[:count],
            f"{SHARED_GATE}.weight": self.router[count:],
            f"{ROUTER}.bias": self.router_bias,
        }
        if (target := whole.get(name)) is not None:
            return Place.of(target, None)
        found = _EXPERT.fullmatch(name)
        if found is None:
            return None
        expert, part = int(found[1]), PARTS.index(found[2])
        if found[3] == "bias":
            assert self.gate_up_bias is not None
            assert self.down_bias is not None
            if part == 2:
                return Place.of(self.down_bias[expert], None)
            return Place.gate_up(self.gate_up_bias[expert])[part]
        weight = self.down if part == 2 else self.gate_up
        if isinstance(weight, PackedExperts):
            return _packed_place(weight, expert, part)
        if isinstance(weight, Mxfp4Experts):
            return _mxfp4_place(weight, expert, part)
        return Place.of(weight[expert], 1) if part == 2 else Place.gate_up(weight[expert])[part]


def _packed_place(weight: PackedExperts, expert: int, part: int) -> PackedPlace:
    views = [None if each is None else each[expert] for each in (weight.codes, weight.scales, weight.zeros)]
    if part < 2:
        views = [None if view is None else gate_up_views(view)[part] for view in views]
    codes, scales, zeros = views
    assert codes is not None
    assert scales is not None
    return PackedPlace(codes, scales, zeros, 1 if part == 2 else 0)


def _mxfp4_place(weight: Mxfp4Experts, expert: int, part: int) -> Mxfp4Place:
    """Groups of gate and up that take turns are units."""
    codes, exponents = weight.codes[expert], weight.exponents[expert].unflatten(1, (-1, UNIT))
    if part == 2:
        return Mxfp4Place(codes, exponents, 1)
    return Mxfp4Place(codes[part::2], exponents[:, part::2], 0)


@cache
def expert_packing(shard: Shard, layer: int, parts: tuple[str, ...]) -> ExpertPacking | None:
    """How the weights of gate and up, or of down, of a layer's experts are packed; None: they are in bfloat16.

    In bfloat16 are experts that are not quantised, or not all alike, and those whose groups kernels do not take.
    """
    config, (gate_up, down) = shard.config, _matrices(shard)
    inputs = (down if parts == _DOWN else gate_up)[2]
    if config.packed_experts:
        return ExpertPacking("e2m1", GROUP, zeros=False) if can_pack_experts(inputs, GROUP) else None
    if config.quantisation is None:
        return None
    schemes = {config.quantisation.scheme_of(module) for module in expert_modules(config, layer, parts)}
    scheme = schemes.pop()
    if schemes or scheme is None:
        return None
    whole = inputs * shard.size if parts == _DOWN else inputs
    group = min(scheme.group_of(whole), whole)
    if not can_pack_experts(inputs, group if group < whole else inputs):
        return None
    return ExpertPacking(scheme.number, group if group < whole else 0, zeros=not scheme.symmetric)


def expert_modules(config: ModelConfig, layer: int, parts: tuple[str, ...]) -> list[str]:
    """As the folder calls parts of all experts of a layer."""
    assert config.form.experts is not None
    names = (expert_module(expert, part) for expert in range(config.form.experts.count) for part in parts)
    return [stored_name(config, f"model.layers.{layer}.{name}.weight").removesuffix(".weight") for name in names]


def expert_bytes(shard: Shard, layer: int) -> int:
    """Bytes of a layer's `ExpertWeights`."""
    held = ExpertWeights.empty(shard, layer, "meta")
    tensors = (held.router, held.gate_up, held.down, held.router_bias, held.gate_up_bias, held.down_bias)
    return sum(each.nbytes for each in tensors if each is not None)


def decoded_experts(shard: Shard) -> list[str]:
    """Layers whose experts are quantised in the folder, and not all of them here."""
    config = shard.config
    if config.quantisation is None:
        return []

    def is_decoded(layer: int, parts: tuple[str, ...]) -> bool:
        return _is_quantised(config, layer, parts) and expert_packing(shard, layer, parts) is None

    layers = filter(config.has_experts, range(config.num_layers))
    return [f"layer {layer} experts" for layer in layers if is_decoded(layer, _GATE_UP) or is_decoded(layer, _DOWN)]


def _is_quantised(config: ModelConfig, layer: int, parts: tuple[str, ...]) -> bool:
    assert config.quantisation is not None
    schemes = map(config.quantisation.scheme_of, expert_modules(config, layer, parts))
    return config.packed_experts or any(scheme is not None for scheme in schemes)


def _matrices(shard: Shard) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    experts, hidden = shard.config.form.experts, shard.config.hidden_size
    assert experts is not None
    size = experts.size // shard.size
    return (experts.count, 2 * size, hidden), (experts.count, hidden, size)


def _others(shard: Shard) -> dict[str, tuple[int, ...]]:
    experts, hidden = shard.config.form.experts, shard.config.hidden_size
    assert experts is not None
    shapes: dict[str, tuple[int, ...]] = {"router": (experts.scores, hidden)}
    if experts.biased:
        size = experts.size // shard.size
        shapes |= {"router_bias": (experts.count,), "gate_up_bias": (experts.count, 2 * size)}
        shapes["down_bias"] = (experts.count, hidden)
    return shapes
