"""Which family a checkpoint belongs to, by its tensors' names, and what each tensor of the EAGLE families must be."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

import torch

from draft_service.heads.config import HeadConfig
from draft_service.heads.expected import check_tensors
from slipstream.speculation.checkpoint_names import OTHER_FAMILIES
from slipstream_kernels.models.checkpoint.model_config import CheckpointError

_RENAMED = (
    (r"model\.", ""),
    (r"(midlayer|transformer)\.", "layers.0."),
    (r"fusion_fc\.", "fc."),
    (r"(embedding|embed)_layernorm\.", "enorm."),
    (r"hidden_layernorm\.", "layers.0.input_layernorm."),
    (r"(pre_lm_head|lm_head)_layernorm\.", "norm."),
)
"""Beginnings of names, and what they become, in order."""

_DERIVED = re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
"""Buffers that some files hold and that the config determines."""

_TOGETHER = (
    r"fc_norm\.\d+\.weight",
    r"layers\.\d+\.self_attn\.[qk]_norm\.weight",
    r"layers\.\d+\.self_attn\.[qkv]_proj\.bias",
)
"""Tensors of which there are all or none."""


def canonical(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors by EAGLE's own names, the first layer being `layers.0`. CheckpointError if two become one."""
    renamed: dict[str, torch.Tensor] = {}
    for original, tensor in tensors.items():
        name = original
        for pattern, replacement in _RENAMED:
            name = re.sub(rf"^{pattern}", replacement, name)
        if _DERIVED.fullmatch(name):
            continue
        if name in renamed:
            raise CheckpointError(f"tensor {name} is there under two names, one of them {original}")
        renamed[name] = tensor
    return renamed


def other_family(names: Collection[str]) -> str:
    """What a checkpoint is if it is no EAGLE head, by its tensors' names; empty: nothing that is known."""
    for pattern, family in OTHER_FAMILIES:
        if any(re.fullmatch(pattern, name) for name in names):
            return family
    return ""


def require(family: str, names: Collection[str]) -> None:
    """Raises CheckpointError, which says what it is, unless a checkpoint is of `family`, one of `other_family`'s."""
    found = other_family(names) or ("EAGLE" if any(name.endswith("fc.weight") for name in names) else "")
    if found != family:
        known = found or f"none that is known, with tensors such as {min(names, default='')}"
        raise CheckpointError(f"the checkpoint's family is {known}; expected {family}")


def family_of(names: Collection[str]) -> str:
    """`eagle` or `eagle3`, by canonical names. CheckpointError, which says what it is, for other families."""
    if family := other_family(names):
        raise CheckpointError(f"this is a {family} checkpoint, no EAGLE head")
    if "hidden_norm.weight" in names and "fc.weight" in names:
        raise CheckpointError("this is a DFlash checkpoint, no EAGLE head")
    if "d2t" in names or "layers.0.hidden_norm.weight" in names:
        return "eagle3"
    if "fc.weight" in names:
        return "eagle"
    raise CheckpointError("no EAGLE head: fc.weight is missing")


def check(family: str, config: HeadConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises CheckpointError, naming the tensor, unless every one is expected, there and of the right shape."""
    required, optional = dict(_required(family, config, tensors)), dict(_optional(family, config, tensors))
    check_groups(optional, tensors)
    if "input_norm.weight" in tensors and "fc_norm.0.weight" in tensors:
        raise CheckpointError("input_norm.weight and fc_norm.0.weight exclude each other")
    maps = ("d2t", "t2d") if family == "eagle3" else ()
    weights = {name: tensor for name, tensor in tensors.items() if name not in maps}
    check_tensors(f"an {family} head", weights, required, optional)


def check_groups(optional: Collection[str], tensors: Collection[str]) -> None:
    """Raises CheckpointError where some, but not all, of optional tensors are there that belong together."""
    for group in _TOGETHER:
        there = [name for name in optional if re.fullmatch(group, name) and name in tensors]
        if there and len(there) < sum(1 for name in optional if re.fullmatch(group, name)):
            raise CheckpointError(f"of the tensors {group} only {', '.join(there)} are there")


Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names and shapes; -1 stands for any size."""


def num_states(config: HeadConfig, tensors: Mapping[str, torch.Tensor]) -> int:
    """How many of the target's boundaries an EAGLE-3 head reads. Raises CheckpointError."""
    fc = tensors.get("fc.weight")
    if fc is None or fc.ndim != 2 or fc.shape[1] % config.target_hidden_size:
        shape = "missing" if fc is None else f"of shape {list(fc.shape)}"
        raise CheckpointError(f"fc.weight is {shape}, expected columns in multiples of {config.target_hidden_size}")
    states = fc.shape[1] // config.target_hidden_size
    if config.num_aux_hidden_states not in (0, states):
        raise CheckpointError(
            f"config.json: num_aux_hidden_states is {config.num_aux_hidden_states}, fc.weight reads {states} states"
        )
    return states


def _required(family: str, config: HeadConfig, tensors: Mapping[str, torch.Tensor]) -> Shapes:
    hidden = config.hidden_size
    if family == "eagle3":
        yield "fc.weight", (hidden, num_states(config, tensors) * config.target_hidden_size)
        yield "layers.0.hidden_norm.weight", (hidden,)
        yield "layers.0.input_layernorm.weight", (hidden,)
        yield "norm.weight", (hidden,)
        if config.norm_before_fc or config.fc_norm:
            begin = "input_norm." if config.norm_before_fc else "fc_norm."
            yield from ((name, shape) for name, shape in _norms_before_fc(config, tensors) if name.startswith(begin))
    else:
        yield "fc.weight", (hidden, hidden + config.target_hidden_size)
    for layer in range(config.num_layers):
        if layer > 0:
            yield f"layers.{layer}.input_layernorm.weight", (hidden,)
        yield from layer_shapes(config, layer, 2 * hidden if layer == 0 and family == "eagle3" else hidden)


def layer_shapes(config: HeadConfig, layer: int, width: int) -> Shapes:
    """What every decoder layer has whose attention reads `width` numbers, all but the norm before the attention."""
    hidden, middle = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    prefix = f"layers.{layer}."
    yield prefix + "post_attention_layernorm.weight", (hidden,)
    for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
        yield f"{prefix}self_attn.{name}_proj.weight", (size, width)
    yield prefix + "self_attn.o_proj.weight", (hidden, q_size)
    yield prefix + "mlp.gate_proj.weight", (middle, hidden)
    yield prefix + "mlp.up_proj.weight", (middle, hidden)
    yield prefix + "mlp.down_proj.weight", (hidden, middle)


def _optional(family: str, config: HeadConfig, tensors: Mapping[str, torch.Tensor]) -> Shapes:
    hidden = config.hidden_size
    vocab = config.vocab_size or -1
    yield "embed_tokens.weight", (vocab, hidden)
    yield "lm_head.weight", (vocab if family == "eagle" else -1, hidden)
    if family == "eagle3":
        yield from _norms_before_fc(config, tensors)
    else:
        yield "fc.bias", (hidden,)
        yield "enorm.weight", (hidden,)
        yield "hnorm.weight", (config.target_hidden_size,)
        yield "norm.weight", (hidden,)
        yield "layers.0.input_layernorm.weight", (hidden,)
    for layer in range(config.num_layers):
        yield from optional_layer_shapes(config, layer)


def optional_layer_shapes(config: HeadConfig, layer: int) -> Shapes:
    """What a decoder layer may have beside."""
    prefix = f"layers.{layer}.self_attn."
    for name, heads in (("q", config.num_heads), ("k", config.num_kv_heads), ("v", config.num_kv_heads)):
        yield f"{prefix}{name}_proj.bias", (heads * config.head_dim,)
    yield prefix + "q_norm.weight", (config.head_dim,)
    yield prefix + "k_norm.weight", (config.head_dim,)


def _norms_before_fc(config: HeadConfig, tensors: Mapping[str, torch.Tensor]) -> Shapes:
    states = num_states(config, tensors)
    yield "input_norm.weight", (states * config.target_hidden_size,)
    for state in range(states):
        yield f"fc_norm.{state}.weight", (config.target_hidden_size,)
