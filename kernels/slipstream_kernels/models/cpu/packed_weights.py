"""A model's weights as the passes on a CPU read them: in bfloat16, or quantised where the kernels take them so."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.arrays import aligned
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.forward import LAYER_FORM, MATRIX
from slipstream_kernels.ops.linear import pack_weight, padded
from slipstream_kernels.ops.quantised_linear import PackedWeight, can_pack, pack_quantised, room_bytes
from slipstream_kernels.ops.quantised_weight import QuantisedWeight, decode, stacked
from slipstream_kernels.ops.rope import Rope

Array = npt.NDArray[np.generic]
Weight = torch.Tensor | QuantisedWeight
_Packed = npt.NDArray[np.uint16] | PackedWeight

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """arrays: by their name in `forward.WEIGHTS`. room: bytes that each thread needs to decode weights in."""

    arrays: Mapping[str, Array]
    matrices: Sequence[_Packed]
    tables: Sequence[Array]
    """What the records among `arrays` point to: weights, and rotary tables."""
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
            torch.stack([torch.cat([_dense(part) for part in parts]) for parts in of_layers(*names)]).float().numpy()
        )

    qkv = [f"self_attn.{name}_proj" for name in "qkv"]
    embedding = _dense(weights["model.embed_tokens.weight"]).contiguous()
    head = embedding if config.tie_word_embeddings else weights["lm_head.weight"]
    if scored is not None:
        head = head.rows(scored) if isinstance(head, QuantisedWeight) else head[scored]
    matrices = {
        "qkv": _matrices(of_layers(*(f"{name}.weight" for name in qkv))),
        "o": _matrices(of_layers("self_attn.o_proj.weight")),
        "gate_up": _matrices(of_layers("mlp.gate_proj.weight", "mlp.up_proj.weight")),
        "down": _matrices(of_layers("mlp.down_proj.weight")),
        "head": _matrices([[head]]),
    }
    form = config.form
    widths = (config.hidden_size, config.q_size + 2 * config.kv_size, 2 * config.intermediate_size, head.shape[0])
    arrays: dict[str, Array] = {
        "embedding": embedding.view(torch.uint16).numpy(),
        "input_norm": vectors("input_layernorm.weight"),
        "post_norm": vectors(
            "pre_feedforward_layernorm.weight" if form.branch_norms else "post_attention_layernorm.weight"
        ),
        "final_norm": _dense(weights["model.norm.weight"]).float().numpy(),
        "zeros": np.zeros(max(map(padded, widths)), np.float32),
        **{name: _records(packed) for name, packed in matrices.items()},
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
    if form.branch_norms:
        arrays["attention_norm"] = vectors("post_attention_layernorm.weight")
        arrays["mlp_norm"] = vectors("post_feedforward_layernorm.weight")
    tables = _rotary_tables(config)
    arrays["layer_forms"] = _layer_forms(config, tables)
    every = [packed for each in matrices.values() for packed in each]
    quantised = any(isinstance(packed, PackedWeight) for packed in every)
    widest = max(config.hidden_size, config.q_size, config.intermediate_size)
    return PackedWeights(arrays, every, tuple(tables.values()), room_bytes(widest) if quantised else 0)


def _rotary_tables(config: ModelConfig) -> dict[Rope, Array]:
    return {rope: rope.table(config.max_context, config.head_dim) for rope in config.ropes}


def _layer_forms(config: ModelConfig, tables: Mapping[Rope, Array]) -> Array:
    forms = np.zeros(config.num_layers, LAYER_FORM)
    for layer, form in enumerate(forms):
        form["rotary"] = tables[config.rope_of(layer)].ctypes.data
        form["window"] = config.attention_of(layer).window
    return forms


def _dense(weight: Weight) -> torch.Tensor:
    return decode(weight) if isinstance(weight, QuantisedWeight) else weight


def _matrices(layers: Iterable[Sequence[Weight]]) -> list[_Packed]:
    """The parts of each layer above one another."""
    return [_matrix(parts) for parts in layers]


def _matrix(parts: Sequence[Weight]) -> _Packed:
    quantised = [part for part in parts if isinstance(part, QuantisedWeight)]
    whole = stacked(quantised) if len(quantised) == len(parts) else None
    if whole is not None and can_pack(whole):
        return pack_quantised(whole)
    if quantised:
        _log.info(
            "a layer of %s is decoded to bfloat16: its parts differ, or kernels do not take them", quantised[0].number
        )
    return pack_weight(torch.cat([_dense(part) for part in parts]))


def _records(packed: Sequence[_Packed]) -> Array:
    records = np.zeros(len(packed), MATRIX)
    for record, weight in zip(records, packed, strict=True):
        if isinstance(weight, PackedWeight):
            arrays = {"weight": weight.codes, "scales": weight.scales, "zeros": weight.zeros}
            for name, array in arrays.items():
                record[name] = array.ctypes.data
            record["kind"], record["group"] = weight.kind, weight.group
        else:
            record["weight"] = weight.ctypes.data
    return records
