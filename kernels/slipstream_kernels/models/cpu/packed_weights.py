"""A model's weights as the passes on a CPU read them: in bfloat16, or quantised where the kernels take them so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from slipstream_kernels.jit.arrays import aligned
from slipstream_kernels.models.checkpoint.expert_names import PARTS
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.tensor_names import SINKS
from slipstream_kernels.models.cpu.forward import LAYER_FORM
from slipstream_kernels.models.cpu.packed_experts import PackedExperts, of_networks
from slipstream_kernels.models.cpu.packed_matrix import Array, Packed, Weight, dense, matrices_of, records_of
from slipstream_kernels.ops.linear import padded
from slipstream_kernels.ops.quantised.packing import PackedWeight
from slipstream_kernels.ops.quantised_linear import ROOM_BYTES
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from slipstream_kernels.ops.query_temperature import QueryTemperature
from slipstream_kernels.ops.rope import Rope


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """arrays: by their name in `forward.WEIGHTS`. room: bytes that each thread needs to decode weights in."""

    arrays: Mapping[str, Array]
    matrices: Sequence[Packed]
    tables: Sequence[Array]
    """What records among `arrays` point to beside weights: rotary tables, biases, and records of experts' weights."""
    room: int

    @property
    def nbytes(self) -> int:
        """Bytes of all weights and tables."""
        return sum(each.nbytes for each in (*self.arrays.values(), *self.matrices, *self.tables))


def pack_weights(config: ModelConfig, weights: Mapping[str, Weight], scored: torch.Tensor | None) -> PackedWeights:
    """Weights by their names in a Hugging Face folder, of the head the rows `scored`; None: all."""

    def of_layers(*names: str) -> list[list[Weight]]:
        return [[weights[f"model.layers.{layer}.{name}"] for name in names] for layer in range(config.num_layers)]

    def vectors(*names: str) -> Array:
        return aligned(
            torch.stack([torch.cat([dense(part) for part in parts]) for parts in of_layers(*names)]).float().numpy()
        )

    qkv = [f"self_attn.{name}_proj" for name in "qkv"]
    embedding = dense(weights["model.embed_tokens.weight"]).contiguous()
    head = embedding if config.tie_word_embeddings else weights["lm_head.weight"]
    if scored is not None:
        head = head.rows(scored) if isinstance(head, QuantisedWeight) else head[scored]
    experts = PackedExperts.of(config, weights)
    matrices = {
        "qkv": matrices_of(of_layers(*(f"{name}.weight" for name in qkv))),
        "o": matrices_of(of_layers("self_attn.o_proj.weight")),
        "gate_up": matrices_of(of_networks(config, weights, PARTS[:2])),
        "down": matrices_of(of_networks(config, weights, PARTS[2:])),
        "head": matrices_of([[head]]),
    }
    form = config.form
    widths = [
        *(config.hidden_size, config.q_size + 2 * config.kv_size, 2 * config.widest_intermediate, head.shape[0]),
        *experts.widths,
    ]
    arrays: dict[str, Array] = {
        "embedding": embedding.view(torch.uint16).numpy(),
        "input_norm": vectors("input_layernorm.weight"),
        "post_norm": vectors(
            "pre_feedforward_layernorm.weight" if form.branch_norms else "post_attention_layernorm.weight"
        ),
        "final_norm": dense(weights["model.norm.weight"]).float().numpy(),
        "zeros": np.zeros(max(map(padded, widths)), np.float32),
        **{name: records_of(packed) for name, packed in matrices.items()},
        **experts.arrays,
    }
    for name, has, modules in (
        ("qkv_bias", form.qkv_bias, qkv),
        ("o_bias", form.output_bias, ["self_attn.o_proj"]),
        ("gate_up_bias", form.mlp_bias, ["mlp.gate_proj", "mlp.up_proj"]),
        ("down_bias", form.mlp_bias, ["mlp.down_proj"]),
    ):
        if has:
            bias = vectors(*(f"{module}.bias" for module in modules))
            arrays[name] = np.pad(bias, ((0, 0), (0, padded(bias.shape[1]) - bias.shape[1])))
    if form.head_norms:
        arrays |= {name: vectors(f"self_attn.{name}.weight") for name in ("q_norm", "k_norm")}
    elif form.unit_norms:
        arrays |= dict.fromkeys(("q_norm", "k_norm"), np.ones((config.num_layers, config.head_dim), np.float32))
    if form.sinks:
        arrays["sinks"] = vectors(SINKS)
    if form.branch_norms:
        arrays["attention_norm"] = vectors("post_attention_layernorm.weight")
        arrays["mlp_norm"] = vectors("post_feedforward_layernorm.weight")
    tables = _rotary_tables(config)
    temperatures = _temperatures(config)
    arrays["layer_forms"] = _layer_forms(config, tables, experts.records, temperatures)
    each_kind = (*matrices.values(), experts.matrices)
    every = [packed for kind in each_kind for packed in kind if packed is not None]
    quantised = any(isinstance(packed, PackedWeight) for packed in every)
    held = (*tables.values(), *temperatures.values(), *experts.records.values(), *experts.biases)
    return PackedWeights(arrays, every, held, ROOM_BYTES if quantised else 0)


def _rotary_tables(config: ModelConfig) -> dict[Rope, Array]:
    return {rope: rope.table(config.max_context, config.head_dim) for rope in config.ropes}


def _temperatures(config: ModelConfig) -> dict[QueryTemperature, Array]:
    """Of those that layers have."""
    return {temperature: temperature.table(config.max_context) for temperature in config.temperatures}


def _layer_forms(
    config: ModelConfig,
    tables: Mapping[Rope, Array],
    experts: Mapping[int, Array],
    temperatures: Mapping[QueryTemperature, Array],
) -> Array:
    forms = np.zeros(config.num_layers, LAYER_FORM)
    for layer, form in enumerate(forms):
        form["rotary"] = tables[config.rope_of(layer)].ctypes.data
        form["reach"] = config.attention_of(layer).reach
        form["head_norms"] = config.normalises_heads(layer)
        if (temperature := config.temperature_of(layer)) is not None:
            form["temperature"] = temperatures[temperature].ctypes.data
        form["experts"] = experts[layer].ctypes.data if layer in experts else 0
    return forms
