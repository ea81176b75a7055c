"""A model's weights on a device, packed as the passes read them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch

from slipstream_kernels.models.checkpoint.load_warnings import tell
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.weight_loader import expected_shapes, iterate_weights
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.gate_up import gate_up_views
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode
from slipstream_kernels.progress import ProgressBar

_log = logging.getLogger(__name__)
_LAYERS = "model.layers."


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """bfloat16, contiguous; sizes are the shard's."""

    input_norm: torch.Tensor
    """[hidden]"""
    qkv: torch.Tensor
    """[q + 2 kv, hidden]: rows of queries, keys, values"""
    qkv_bias: torch.Tensor | None
    """[q + 2 kv]"""
    q_norm: torch.Tensor | None
    """[head_dim]"""
    k_norm: torch.Tensor | None
    """[head_dim]"""
    o: torch.Tensor
    """[hidden, q]"""
    post_norm: torch.Tensor
    """[hidden]"""
    gate_up: torch.Tensor
    """[2 intermediate, hidden], in the order of ops/gpu/gate_up.py"""
    down: torch.Tensor
    """[hidden, intermediate]"""


@dataclass(frozen=True, slots=True)
class GpuWeights:
    """bfloat16, contiguous. With tied embeddings `head` is a view of `embedding`."""

    shard: Shard
    embedding: torch.Tensor
    """[vocab, hidden], whole on every rank"""
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    """[hidden]"""
    head: torch.Tensor
    """[vocab of the shard, hidden]"""

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
        """Read a Hugging Face folder tensor by tensor to the device; wider types are rounded, quantised ones decoded.

        Raises CheckpointError unless names and shapes fit exactly and the ranks divide the model.
        """
        weights = cls._empty(Shard(config, rank, size), device)
        if rank == 0:
            tell(folder, config)
            if config.quantisation is not None:
                _log.warning("%s: quantised weights are decoded to bfloat16, as which they are held on a GPU", folder)
        on_device = ((name, _dense(weight, device)) for name, weight in iterate_weights(folder, config))
        _fill(weights, on_device, "loading weights", progress=progress)
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

        Ranks hold the parts of one model. Equal seeds give equal weights on devices of one type.
        """
        weights = cls._empty(Shard(config, rank, size), device)
        generator = torch.Generator(device).manual_seed(seed)
        _fill(weights, _random_tensors(config, generator), "drawing weights", progress=progress)
        return weights

    @classmethod
    def from_tensors(
        cls,
        config: ModelConfig,
        tensors: Iterable[tuple[str, torch.Tensor]],
        device: torch.device | str,
        *,
        rank: int = 0,
        size: int = 1,
        progress: bool = False,
    ) -> GpuWeights:
        """Take over whole tensors by their names in a Hugging Face folder; each may be made as it is asked for.

        There must be one of each name of `expected_shapes`, of its shape.
        """
        weights = cls._empty(Shard(config, rank, size), device)
        weights.refill(tensors, progress=progress)
        return weights

    def refill(self, tensors: Iterable[tuple[str, torch.Tensor]], *, progress: bool = False) -> None:
        """Overwrite all weights where they are, as `from_tensors`."""
        _fill(self, tensors, "making weights", progress=progress)

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return weight_bytes(self.shard)

    @classmethod
    def _empty(cls, shard: Shard, device: torch.device | str) -> GpuWeights:
        config = shard.config

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device=device)

        hidden, intermediate = config.hidden_size, shard.intermediate_size
        layers = tuple(
            LayerWeights(
                input_norm=empty(hidden),
                qkv=empty(shard.qkv_size, hidden),
                qkv_bias=empty(shard.qkv_size) if config.attention_bias else None,
                q_norm=empty(config.head_dim) if config.head_norms else None,
                k_norm=empty(config.head_dim) if config.head_norms else None,
                o=empty(hidden, shard.q_size),
                post_norm=empty(hidden),
                gate_up=empty(2 * intermediate, hidden),
                down=empty(hidden, intermediate),
            )
            for _ in range(config.num_layers)
        )
        embedding = empty(config.vocab_size, hidden)
        tied = embedding.narrow(0, shard.rank * shard.vocab_size, shard.vocab_size)
        head = tied if config.tie_word_embeddings else empty(shard.vocab_size, hidden)
        return cls(shard, embedding, layers, empty(hidden), head)


def weight_bytes(shard: Shard) -> int:
    """Bytes of a shard's weights on its device."""
    config = shard.config
    hidden = config.hidden_size
    layer = shard.qkv_size * hidden + hidden * shard.q_size + 3 * shard.intermediate_size * hidden + 2 * hidden
    layer += shard.qkv_size * config.attention_bias + 2 * config.head_dim * config.head_norms
    head = 0 if config.tie_word_embeddings else shard.vocab_size * hidden
    return 2 * (config.num_layers * layer + config.vocab_size * hidden + head + hidden)


def _random_tensors(config: ModelConfig, generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    for name, shape in expected_shapes(config):
        tensor = torch.empty(shape, dtype=torch.bfloat16, device=generator.device)
        tensor.normal_(generator=generator)
        if "norm" in name:
            tensor.mul_(0.1).add_(1)
        elif name.endswith(".bias"):
            tensor.mul_(0.1)
        elif "o_proj" in name or "down_proj" in name:
            # Each layer adds two of these to the residual stream.
            tensor.mul_((2 * config.num_layers * shape[1]) ** -0.5)
        elif "embed" not in name or config.tie_word_embeddings:
            tensor.mul_(shape[1] ** -0.5)
        yield name, tensor


def _fill(weights: GpuWeights, tensors: Iterable[tuple[str, torch.Tensor]], title: str, *, progress: bool) -> None:
    shard = weights.shard
    total = sum(2 * prod(shape) for _, shape in expected_shapes(shard.config))
    with ProgressBar(total=total, desc=title, unit="B", unit_scale=True, disable=not progress) as bar:
        for name, tensor in tensors:
            bar.update(2 * tensor.numel())
            target, axis = _place(weights, name)
            if target.numel() != tensor.numel():
                width = tensor.shape[axis] // shard.size
                tensor = tensor.narrow(axis, shard.rank * width, width)
            target.copy_(tensor.reshape(target.shape))


def _dense(weight: torch.Tensor | QuantisedWeight, device: torch.device | str) -> torch.Tensor:
    return decode(weight.to(device)) if isinstance(weight, QuantisedWeight) else weight


def _place(weights: GpuWeights, name: str) -> tuple[torch.Tensor, int]:
    """Where a tensor of the checkpoint goes, maybe with its rows in groups, and the axis along which ranks share it."""
    if not name.startswith(_LAYERS):
        whole = {
            "model.embed_tokens.weight": weights.embedding,
            "model.norm.weight": weights.final_norm,
            "lm_head.weight": weights.head,
        }
        return whole[name], 0
    index, _, part = name.removeprefix(_LAYERS).partition(".")
    layer, shard = weights.layers[int(index)], weights.shard
    parts = [shard.q_size, shard.kv_size, shard.kv_size]
    q, k, v = layer.qkv.split(parts)
    q_bias, k_bias, v_bias = (None,) * 3 if layer.qkv_bias is None else layer.qkv_bias.split(parts)
    gate, up = gate_up_views(layer.gate_up)
    tensor, axis = {
        "input_layernorm.weight": (layer.input_norm, 0),
        "post_attention_layernorm.weight": (layer.post_norm, 0),
        "self_attn.q_proj.weight": (q, 0),
        "self_attn.k_proj.weight": (k, 0),
        "self_attn.v_proj.weight": (v, 0),
        "self_attn.q_proj.bias": (q_bias, 0),
        "self_attn.k_proj.bias": (k_bias, 0),
        "self_attn.v_proj.bias": (v_bias, 0),
        "self_attn.q_norm.weight": (layer.q_norm, 0),
        "self_attn.k_norm.weight": (layer.k_norm, 0),
        "self_attn.o_proj.weight": (layer.o, 1),
        "mlp.gate_proj.weight": (gate, 0),
        "mlp.up_proj.weight": (up, 0),
        "mlp.down_proj.weight": (layer.down, 1),
    }[part]
    assert tensor is not None
    return tensor, axis
