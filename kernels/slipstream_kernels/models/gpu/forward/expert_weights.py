"""The weights of a layer of experts on a device, in bfloat16 or packed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import torch

from slipstream_kernels.models.checkpoint.expert_names import PARTS, ROUTER, SHARED_GATE, expert_module
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.mxfp4 import GROUP
from slipstream_kernels.models.checkpoint.tensor_names import stored_name
from slipstream_kernels.models.gpu.forward.weight_places import AnyTensor, Place, quantised_part
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.experts.expert_linear import ExpertMatrix
from slipstream_kernels.ops.gpu.experts.fragment_experts import FragmentExperts, can_be_fragments, pieces_of
from slipstream_kernels.ops.gpu.experts.packed_experts import PackedExperts, can_pack_experts
from slipstream_kernels.ops.gpu.gate_up import gate_up_views
from slipstream_kernels.ops.gpu.packed.packed_weight import UNIT, PackedForm
from slipstream_kernels.ops.quantised_weight import PAIRED, Number, QuantisedWeight

_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(\w+)\.(weight|bias)")
_GATE_UP, _DOWN = PARTS[:2], PARTS[2:]
FRAGMENTS: Final[tuple[Number, ...]] = (*PAIRED, "e4m3")
"""Numbers that are faster so at the rows that decode: integers of 8 bits are not measured."""


@dataclass(frozen=True, slots=True)
class ExpertPacking:
    """How a weight of experts is packed: see `PackedExperts`, or `FragmentExperts`."""

    number: Number
    group: int
    zeros: bool
    fragments: bool

    def empty(self, shape: tuple[int, int, int], device: torch.device | str) -> ExpertMatrix:
        """Room for weights of a shape."""
        kind = FragmentExperts if self.fragments else PackedExperts
        return kind.empty(self.number, shape, self.group, device, zeros=self.zeros)


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
class FragmentPlace:
    """Some units of an expert of `FragmentExperts`.

    codes: int32 [units, chunks, WORDS]; scales and zeros [groups, units, UNIT]; form: of the expert; axis as above.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    form: PackedForm
    axis: int

    def fill(self, tensor: AnyTensor, shard: Shard) -> None:
        """Write the rank's part of a quantised weight here."""
        assert isinstance(tensor, QuantisedWeight)
        pieces = pieces_of(quantised_part(tensor, self.axis, shard), self.form)
        for own, piece in zip((self.codes, self.scales, self.zeros), pieces, strict=True):
            if own is not None and piece is not None:
                own.copy_(piece.reshape(own.shape))


ExpertPlace = PackedPlace | FragmentPlace
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
            return packing.empty(shape, device)

        gate_up, down = _matrices(shard)
        return cls(
            gate_up=matrix(gate_up, expert_packing(shard, layer, _GATE_UP)),
            down=matrix(down, expert_packing(shard, layer, _DOWN)),
            **{name: torch.empty(shape, dtype=torch.bfloat16, device=device) for name, shape in _others(shard).items()},
        )

    def settled(self) -> ExpertWeights:
        """The same, of fragments whose contents are there."""
        gate_up, down = (
            weight.settled() if isinstance(weight, FragmentExperts) else weight for weight in (self.gate_up, self.down)
        )
        return replace(self, gate_up=gate_up, down=down)

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
        if isinstance(weight, FragmentExperts):
            return _fragment_place(weight, expert, part)
        return Place.of(weight[expert], 1) if part == 2 else Place.gate_up(weight[expert])[part]


def _packed_place(weight: PackedExperts, expert: int, part: int) -> PackedPlace:
    views = [None if each is None else each[expert] for each in (weight.codes, weight.scales, weight.zeros)]
    if part < 2:
        views = [None if view is None else gate_up_views(view)[part] for view in views]
    codes, scales, zeros = views
    assert codes is not None
    assert scales is not None
    return PackedPlace(codes, scales, zeros, 1 if part == 2 else 0)


def _fragment_place(weight: FragmentExperts, expert: int, part: int) -> FragmentPlace:
    """Groups of gate and up that take turns are units."""
    units = slice(None) if part == 2 else slice(part, None, 2)
    scales, zeros = (
        None if each is None else each[expert].unflatten(1, (-1, UNIT))[:, units]
        for each in (weight.scales, weight.zeros)
    )
    assert scales is not None
    return FragmentPlace(weight.codes[expert][units], scales, zeros, weight.form, 1 if part == 2 else 0)


@cache
def expert_packing(shard: Shard, layer: int, parts: tuple[str, ...]) -> ExpertPacking | None:
    """How the weights of gate and up, or of down, of a layer's experts are packed; None: they are in bfloat16.

    In bfloat16 are experts that are not quantised, or not all alike, and those whose groups kernels do not take. Codes
    of FRAGMENTS are fragments where they can be: in another order they pass through shared memory.
    """
    config, (gate_up, down) = shard.config, _matrices(shard)
    _, outputs, inputs = down if parts == _DOWN else gate_up
    if config.packed_experts:
        can = can_be_fragments("e2m1", outputs, inputs, GROUP)
        return ExpertPacking("e2m1", GROUP, zeros=False, fragments=True) if can else None
    if config.quantisation is None:
        return None
    schemes = {config.quantisation.scheme_of(module) for module in expert_modules(config, layer, parts)}
    scheme = schemes.pop()
    if schemes or scheme is None:
        return None
    whole = inputs * shard.size if parts == _DOWN else inputs
    of_whole = scheme.group_of(whole)
    group = min(of_whole, inputs)
    if not can_pack_experts(inputs, group) or (of_whole < whole and inputs % of_whole):
        return None
    fragments = scheme.number in FRAGMENTS and can_be_fragments(scheme.number, outputs, inputs, group)
    return ExpertPacking(scheme.number, group if group < inputs else 0, not scheme.symmetric, fragments)


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
