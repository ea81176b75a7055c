"""A model's weights on a device, packed as the passes read them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import torch

from slipstream_kernels.models.checkpoint.load_warnings import tell
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.tensor_names import SINKS
from slipstream_kernels.models.checkpoint.weight_loader import expected_shapes, iterate_weights
from slipstream_kernels.models.gpu.forward.expert_weights import (
    ExpertPlace,
    ExpertWeights,
    decoded_experts,
    expert_bytes,
)
from slipstream_kernels.models.gpu.forward.packed_layers import (
    HEAD,
    LAYERS,
    decoded_layers,
    packed_form,
    room_size,
    shape_of,
)
from slipstream_kernels.models.gpu.forward.random_tensors import random_tensors
from slipstream_kernels.models.gpu.forward.weight_places import AnyTensor, Copy, Place, plain_copy
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Form, Fp8Weight
from slipstream_kernels.ops.gpu.packed.any_linear import LayerWeight, Weight
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight
from slipstream_kernels.progress import ProgressBar

_log = logging.getLogger(__name__)
_LAYERS = "model.layers."
_QKV = tuple(f"self_attn.{name}_proj.{kind}" for kind in ("weight", "bias") for name in "qkv")
_GATE_UP = ("mlp.gate_proj.weight", "mlp.up_proj.weight")
_GATE_UP_BIASES = ("mlp.gate_proj.bias", "mlp.up_proj.bias")


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """bfloat16, contiguous, or, of linear layers, packed or of e4m3 with activations in e4m3; sizes are the shard's.

    Norms' weights that files have less one are float32. Biases and norms that a model has not are None.
    """

    input_norm: torch.Tensor
    """[hidden]"""
    qkv: LayerWeight
    """[q + 2 kv, hidden]: rows of queries, keys, values"""
    qkv_bias: torch.Tensor | None
    """[q + 2 kv]"""
    q_norm: torch.Tensor | None
    """[head_dim]; of norms without weights all are 1"""
    k_norm: torch.Tensor | None
    """[head_dim]"""
    o: LayerWeight
    """[hidden, q]"""
    post_norm: torch.Tensor
    """[hidden]"""
    gate_up: LayerWeight
    """[2 intermediate, hidden], in the order of ops/gpu/gate_up.py; of a layer of experts that of the shared one"""
    down: LayerWeight
    """[hidden, intermediate]"""
    o_bias: torch.Tensor | None = None
    """[hidden]"""
    gate_up_bias: torch.Tensor | None = None
    """[2 intermediate], in the order of gate_up"""
    down_bias: torch.Tensor | None = None
    """[hidden]"""
    attention_norm: torch.Tensor | None = None
    """[hidden], of what attention adds to the residual stream"""
    mlp_norm: torch.Tensor | None = None
    """[hidden], of what the feed-forward layer adds"""
    sinks: torch.Tensor | None = None
    """float32 [heads]"""
    experts: ExpertWeights | None = None
    """None: the layer has none"""


@dataclass(frozen=True, slots=True)
class GpuWeights:
    """bfloat16, contiguous, or packed. With tied embeddings `head` is a view of `embedding`."""

    shard: Shard
    embedding: torch.Tensor
    """[vocab, hidden], whole on every rank"""
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    """[hidden]"""
    head: Weight
    """[vocab of the shard, hidden]"""
    room: torch.Tensor
    """[elements], where packed layers of many rows are decoded"""

    def norm_behind_experts(self, index: int) -> torch.Tensor | None:
        """The next layer's norm, which a layer of experts applies with its sum; of ranks, which have parts, none."""
        if self.layers[index].experts is None or self.shard.size > 1 or index + 1 == len(self.layers):
            return None
        return self.layers[index + 1].input_norm

    @classmethod
    def load(
        cls,
        folder: Path,
        config: ModelConfig,
        device: torch.device | str,
        *,
        rank: int = 0,
        size: int = 1,
        progress: bool = True,
    ) -> GpuWeights:
        """Read a Hugging Face folder tensor by tensor to the device; wider types are rounded, quantised weights packed.

        Raises CheckpointError unless names and shapes fit exactly and the ranks divide the model.
        """
        weights = cls.laid_out(folder, config, device, rank=rank, size=size)
        weights.fill(iterate_weights(folder, config, device=device), "loading weights", progress=progress)
        return weights.settled()

    @classmethod
    def laid_out(
        cls, folder: Path, config: ModelConfig, device: torch.device | str, *, rank: int = 0, size: int = 1
    ) -> GpuWeights:
        """Room for the weights of a folder, of which nothing is read yet. Warns of what is odd about them."""
        weights = cls._empty(Shard(config, rank, size), device)
        if rank == 0:
            tell(folder, config)
            if decoded := [*decoded_layers(weights.shard), *decoded_experts(weights.shard)]:
                _log.warning(
                    "%s: %d layers are decoded to bfloat16, as their parts differ or no kernel takes them: first %s",
                    folder,
                    len(decoded),
                    decoded[0],
                )
        return weights

    @classmethod
    def random(
        cls,
        config: ModelConfig,
        device: torch.device | str,
        seed: int = 0,
        *,
        rank: int = 0,
        size: int = 1,
        progress: bool = False,
    ) -> GpuWeights:
        """Normally distributed weights, scaled so that activations stay of order one however deep the model is.

        They are quantised as `config` says, each to the nearest number. Ranks hold the parts of one model. Equal seeds
        give equal weights on devices of one type.
        """
        weights = cls._empty(Shard(config, rank, size), device)
        generator = torch.Generator(device).manual_seed(seed)
        weights.fill(random_tensors(config, generator), "drawing weights", progress=progress)
        return weights.settled()

    @classmethod
    def from_tensors(
        cls,
        config: ModelConfig,
        tensors: Iterable[tuple[str, AnyTensor]],
        device: torch.device | str,
        *,
        rank: int = 0,
        size: int = 1,
        progress: bool = False,
    ) -> GpuWeights:
        """Take over whole tensors by their names in a Hugging Face folder; each may be made as it is asked for.

        There must be one of each name of `expected_shapes`, of its shape, and quantised as `config` says.
        """
        weights = cls._empty(Shard(config, rank, size), device)
        weights.refill(tensors, progress=progress)
        return weights.settled()

    def refill(self, tensors: Iterable[tuple[str, AnyTensor]], *, progress: bool = False) -> None:
        """Overwrite all weights where they are, as `from_tensors`; none is packed."""
        self.fill(tensors, "making weights", progress=progress)

    def fill(
        self, tensors: Iterable[tuple[str, AnyTensor]], title: str, *, progress: bool, copy: Copy = plain_copy
    ) -> None:
        """Write tensors, by their names in a Hugging Face folder, where they go; `title` is that of the bar.

        `copy` is how, of those that are no expert's.
        """
        total = sum(prod(shape) for _, shape in expected_shapes(self.shard.config))
        with ProgressBar(total=total, desc=title, unit=" parameters", unit_scale=True, disable=not progress) as bar:
            for name, tensor in tensors:
                bar.update(prod(tensor.shape))
                place = _place(self, name)
                if isinstance(place, Place):
                    place.fill(tensor, self.shard, copy)
                else:
                    place.fill(tensor, self.shard)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return weight_bytes(self.shard)

    def settled(self) -> GpuWeights:
        """The same, of packed weights whose contents are there.

        A device gets back what they were made in: memory is planned by what it has free.
        """
        if self.embedding.is_cuda:
            torch.cuda.empty_cache()

        def of(weight: LayerWeight) -> LayerWeight:
            return weight.settled() if isinstance(weight, PackedWeight) else weight

        def of_experts(weights: ExpertWeights | None) -> ExpertWeights | None:
            return None if weights is None else weights.settled()

        layers = [
            replace(
                layer, qkv=of(layer.qkv), o=of(layer.o), gate_up=of(layer.gate_up), down=of(layer.down),
                experts=of_experts(layer.experts),
            )
            for layer in self.layers
        ]  # fmt: skip
        head = self.head.settled() if isinstance(self.head, PackedWeight) else self.head
        return replace(self, layers=tuple(layers), head=head)

    @classmethod
    def _empty(cls, shard: Shard, device: torch.device | str) -> GpuWeights:
        config = shard.config

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device=device)

        def norm(size: int) -> torch.Tensor:
            dtype = torch.float32 if own.stored_less_one else torch.bfloat16
            return torch.empty(size, dtype=dtype, device=device)

        def head_norm(layer: int) -> torch.Tensor | None:
            if not config.normalises_heads(layer):
                return None
            return norm(config.head_dim).fill_(1) if own.unit_norms else norm(config.head_dim)

        room = empty(room_size(shard))

        def linear(name: str, layer: int = 0) -> LayerWeight:
            form = packed_form(shard, name, layer)
            if form is None:
                return empty(*shape_of(shard, name, layer))
            return form.empty(device) if isinstance(form, Fp8Form) else form.empty(device, room)

        own, hidden = config.form, config.hidden_size
        layers = tuple(
            LayerWeights(
                input_norm=norm(hidden),
                qkv=linear("qkv", layer),
                qkv_bias=empty(shard.qkv_size) if own.qkv_bias else None,
                q_norm=head_norm(layer),
                k_norm=head_norm(layer),
                o=linear("o", layer),
                post_norm=norm(hidden),
                gate_up=linear("gate_up", layer),
                down=linear("down", layer),
                o_bias=empty(hidden) if own.output_bias else None,
                gate_up_bias=empty(2 * shard.intermediate_of(layer)) if own.mlp_bias else None,
                down_bias=empty(hidden) if own.mlp_bias else None,
                attention_norm=norm(hidden) if own.branch_norms else None,
                mlp_norm=norm(hidden) if own.branch_norms else None,
                sinks=torch.empty(shard.heads, dtype=torch.float32, device=device) if own.sinks else None,
                experts=ExpertWeights.empty(shard, layer, device) if config.has_experts(layer) else None,
            )
            for layer in range(config.num_layers)
        )
        embedding = empty(config.vocab_size, hidden)
        tied = embedding.narrow(0, shard.rank * shard.vocab_size, shard.vocab_size)
        head = tied if config.tie_word_embeddings else linear(HEAD)
        assert not isinstance(head, Fp8Weight)
        return cls(shard, embedding, layers, norm(hidden), head, room)


def weight_bytes(shard: Shard) -> int:
    """Bytes of a shard's weights on its device, and of the room in which packed ones are decoded."""
    config, own, hidden = shard.config, shard.config.form, shard.config.hidden_size

    def linear(name: str, layer: int = 0) -> int:
        form = packed_form(shard, name, layer)
        return 2 * prod(shape_of(shard, name, layer)) if form is None else form.nbytes

    biases = shard.qkv_size * own.qkv_bias + hidden * own.output_bias
    biases += (2 * shard.widest_intermediate + hidden) * own.mlp_bias
    norms = config.num_layers * 2 * hidden * (1 + own.branch_norms) + hidden
    norms += 2 * config.head_dim * sum(map(config.normalises_heads, range(config.num_layers)))
    norm_bytes = norms * (4 if own.stored_less_one else 2)
    layers = sum(2 * biases + sum(linear(name, layer) for name in LAYERS) for layer in range(config.num_layers))
    layers += 4 * config.num_layers * shard.heads * own.sinks
    layers += sum(expert_bytes(shard, layer) for layer in range(config.num_layers) if config.has_experts(layer))
    head = 0 if config.tie_word_embeddings else linear(HEAD)
    return layers + norm_bytes + head + 2 * (hidden * config.vocab_size + room_size(shard))


def _place(weights: GpuWeights, name: str) -> Place | ExpertPlace:
    """Where a tensor of the checkpoint goes."""
    if not name.startswith(_LAYERS):
        return {
            "model.embed_tokens.weight": Place.of(weights.embedding, None),
            "model.norm.weight": Place.of(weights.final_norm, None),
            "lm_head.weight": Place.of(weights.head, 0),
        }[name]
    index, _, part = name.removeprefix(_LAYERS).partition(".")
    layer, shard = weights.layers[int(index)], weights.shard
    if layer.experts is not None:
        if (place := layer.experts.place(part)) is not None:
            return place
        part = part.replace("mlp.shared_expert.", "mlp.")
    if part in _QKV:
        module, _, kind = part.partition(".")[2].partition(".")
        weight = layer.qkv if kind == "weight" else layer.qkv_bias
        assert weight is not None
        return Place.stacked(weight, [shard.q_size, shard.kv_size, shard.kv_size])["qkv".index(module[0])]
    if part in _GATE_UP_BIASES:
        assert layer.gate_up_bias is not None
        return Place.gate_up(layer.gate_up_bias)[_GATE_UP_BIASES.index(part)]
    if part in _GATE_UP:
        return Place.gate_up(layer.gate_up)[_GATE_UP.index(part)]
    after_attention = layer.post_norm if layer.attention_norm is None else layer.attention_norm
    weight, axis = {
        "input_layernorm.weight": (layer.input_norm, None),
        "post_attention_layernorm.weight": (after_attention, None),
        "pre_feedforward_layernorm.weight": (layer.post_norm, None),
        "post_feedforward_layernorm.weight": (layer.mlp_norm, None),
        "self_attn.o_proj.bias": (layer.o_bias, None),
        "mlp.down_proj.bias": (layer.down_bias, None),
        SINKS: (layer.sinks, 0),
        "self_attn.q_norm.weight": (layer.q_norm, None),
        "self_attn.k_norm.weight": (layer.k_norm, None),
        "self_attn.o_proj.weight": (layer.o, 1),
        "mlp.down_proj.weight": (layer.down, 1),
    }[part]
    assert weight is not None
    return Place.of(weight, axis)
