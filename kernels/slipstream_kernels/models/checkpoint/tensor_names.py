"""Tensors of a model by name: as its folder stores them, and as it is computed with.

The two differ where a family's files hold several weights as one, have norms' weights less one, or have the elements of
a head that turn in another order. Everything behind the loader knows the second alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from slipstream_kernels.models.checkpoint.expert_names import (
    Shapes,
    Weight,
    computed_experts,
    expert_projections,
    stored_expert_name,
    stored_expert_shapes,
)
from slipstream_kernels.models.checkpoint.llama4_form import LLAMA4
from slipstream_kernels.models.checkpoint.llama4_names import llama4_parts, llama4_shapes, stored_llama4_name
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.text_part import has_other_parts
from slipstream_kernels.models.checkpoint.tied_head import EMBEDDING, HEAD
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from slipstream_kernels.ops.rope import halves_of_pairs, rotated_first

SINKS = "self_attn.sinks"
"""Of a layer's heads."""
_FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""What weights that lie above one another are called, and their parts in order."""
_TURNED = (".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.q_norm", ".self_attn.k_norm")


def expected_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every tensor of the model, as it is computed with when no weight is quantised."""
    form = config.form
    hidden = config.hidden_size
    yield EMBEDDING, (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "post_attention_layernorm.weight", (hidden,)
        if form.branch_norms:
            yield prefix + "pre_feedforward_layernorm.weight", (hidden,)
            yield prefix + "post_feedforward_layernorm.weight", (hidden,)
        for name, (size, inputs), biased in _projections(config, layer):
            if form.sinks and name == "self_attn.o_proj":
                yield prefix + SINKS, (config.num_heads,)
            if form.head_norms and name == "self_attn.o_proj":
                yield prefix + "self_attn.q_norm.weight", (config.head_dim,)
                yield prefix + "self_attn.k_norm.weight", (config.head_dim,)
            yield f"{prefix}{name}.weight", (size, inputs)
            if biased:
                yield f"{prefix}{name}.bias", (size,)
    yield "model.norm.weight", (hidden,)
    if not config.tie_word_embeddings:
        yield HEAD, (config.vocab_size, hidden)


def _projections(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, int], bool]]:
    """A layer's projections: name, (outputs, inputs), whether there is a bias."""
    form, hidden, inner = config.form, config.hidden_size, config.intermediate_size
    yield "self_attn.q_proj", (config.q_size, hidden), form.qkv_bias
    yield "self_attn.k_proj", (config.kv_size, hidden), form.qkv_bias
    yield "self_attn.v_proj", (config.kv_size, hidden), form.qkv_bias
    yield "self_attn.o_proj", (hidden, config.q_size), form.output_bias
    if config.has_experts(layer):
        yield from expert_projections(config)
        return
    yield "mlp.gate_proj", (inner, hidden), form.mlp_bias
    yield "mlp.up_proj", (inner, hidden), form.mlp_bias
    yield "mlp.down_proj", (hidden, inner), form.mlp_bias


def stored_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every tensor of the model's folder, as it is when no weight is quantised."""
    whole: dict[str, tuple[int, ...]] = {}
    for name, shape in expected_shapes(config):
        stored = stored_name(config, name)
        before = whole.get(stored)
        whole[stored] = shape if before is None else (before[0] + shape[0], *shape[1:])
    if config.form.experts is None:
        yield from whole.items()
        return
    for stored, shape in whole.items():
        if config.family in LLAMA4:
            yield from llama4_shapes(stored, shape, config.form.experts.count)
        else:
            yield from stored_expert_shapes(config, stored, shape)


def stored_name(config: ModelConfig, name: str) -> str:
    """What the tensor of the folder is called that holds one of `expected_shapes`."""
    if config.form.fused_projections:
        for whole, parts in _FUSED.items():
            for part in parts:
                if f".{part}." in name:
                    return name.replace(part, whole)
    if config.family in LLAMA4:
        return stored_llama4_name(name, nested=has_other_parts(config.family), fused=config.fused_experts)
    return stored_expert_name(config, name) if config.form.experts is not None else name


def stored_as_computed(config: ModelConfig) -> bool:
    """Whether a folder's tensors are those that are computed with, name by name."""
    renamed = config.fused_experts or config.family in ("mixtral", "gpt_oss", *LLAMA4)
    return not (config.form.fused_projections or config.form.stored_less_one or config.rope.rotated or renamed)


def _order_of_heads(config: ModelConfig) -> list[int] | None:
    """The element of a checkpoint's head at each place; None: each is at its own."""
    if config.form.interleaved:
        return halves_of_pairs(config.head_dim)
    return rotated_first(config.head_dim, config.rope.rotated) if config.rope.rotated else None


def computed(
    config: ModelConfig,
    stored: str,
    tensor: Weight | Sequence[QuantisedWeight],
    device: torch.device | str = "cpu",
) -> Iterator[tuple[str, Weight]]:
    """Name and tensor of what a tensor of `stored_shapes` holds; norms' weights in float32 where they are added to.

    Of packed experts, see `ModelConfig.packed_experts`, the weights of all are given. Experts whose inputs come first
    in one tensor are taken apart on `device`, where they are then.
    """
    order = _order_of_heads(config)
    for name, part in _parts(config, stored, tensor, device):
        if config.form.stored_less_one and name.endswith("norm.weight"):
            assert isinstance(part, torch.Tensor)
            yield name, part.float() + 1
        elif order is not None and any(f"{each}." in name for each in _TURNED):
            heads = part.shape[0] // config.head_dim
            yield name, _rows(part, (torch.arange(heads)[:, None] * config.head_dim + torch.tensor(order)).flatten())
        else:
            yield name, part


def _parts(
    config: ModelConfig, stored: str, tensor: Weight | Sequence[QuantisedWeight], device: torch.device | str
) -> Iterator[tuple[str, Weight]]:
    if config.family in LLAMA4:
        assert isinstance(tensor, torch.Tensor | QuantisedWeight)
        yield from llama4_parts(stored, tensor, device)
        return
    if config.form.experts is not None:
        yield from computed_experts(config, stored, tensor)
        return
    assert isinstance(tensor, torch.Tensor | QuantisedWeight)
    sizes = {name.split(".", 1)[1]: shape[0] for name, shape, _ in _projections(config, 0)}
    for whole, parts in _FUSED.items() if config.form.fused_projections else ():
        if f".{whole}." in stored:
            start = 0
            for part in parts:
                end = start + sizes[part.split(".", 1)[1]]
                yield stored.replace(whole, part), _rows(tensor, slice(start, end))
                start = end
            return
    yield stored, tensor


def _rows(weight: Weight, index: torch.Tensor | slice) -> Weight:
    return weight.rows(index) if isinstance(weight, QuantisedWeight) else weight[index]
