"""Names of MTP layers' tensors in the two layouts that exist, and what each tensor must be.

MiMo: `model.mtp_layers.K.`, inside the target's checkpoint. DeepSeek's NextN: `model.layers.N.` with `eh_proj`, behind
the target's layers or extracted into a folder of its own, where numbers begin at 0.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Literal

import torch

from draft_service.heads.config import HeadConfig
from draft_service.heads.expected import check_tensors
from draft_service.heads.names import check_groups, layer_shapes, optional_layer_shapes, require
from slipstream_kernels.models.checkpoint.model_config import CheckpointError

Layout = Literal["mimo", "nextn"]

_MIMO = re.compile(r"(?:model\.)?mtp_layers\.(\d+)\.(.+)")
_NEXTN = re.compile(r"(?:model\.)?layers\.(\d+)\.(.+)")
_PARTS = {
    "token_layernorm.weight": "enorm.weight",
    "hidden_layernorm.weight": "hnorm.weight",
    "final_layernorm.weight": "final_norm.weight",
    "input_proj.weight": "eh_proj.weight",
    "shared_head.norm.weight": "final_norm.weight",
}
"""Parts of a layer that are called otherwise here."""
_SHARED = {"embed_tokens.weight": "embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}
"""Parts of a NextN layer that all layers share with the target."""

_UNSUPPORTED = (
    (r"self_attn\.(q_a|q_b|kv_a|kv_b)_.*", "latent attention (MLA)"),
    (r"mlp\.(experts|shared_experts?|gate)\..*", "a mixture of experts"),
    (r".*\.(weight_scale(_inv)?|qweight|qzeros|scales)", "quantised weights"),
)
"""Parts of a layer that say what it is, where it is nothing that can be computed here."""


def find(names: Collection[str]) -> tuple[Layout, dict[str, str]]:
    """The layout, and by the tensors' names in the file what they are called here: `layers.K.`, K from 0.

    What is shared with the target is called `embed_tokens.weight` and `lm_head.weight`; of several layers that hold it
    the first counts. Names that belong to no MTP layer are left out. CheckpointError if there is none, there are both
    layouts, a tensor is there under two names, or a layer has parts that are not supported.
    """
    require("MTP", names)
    mimo = {name: found for name in names if (found := _MIMO.fullmatch(name))}
    layers = {name: found for name in names if (found := _NEXTN.fullmatch(name))}
    numbers = {found[1] for found in layers.values() if found[2] == "eh_proj.weight"}
    nextn = {name: found for name, found in layers.items() if found[1] in numbers}
    if bool(mimo) == bool(nextn):
        raise CheckpointError("MTP layers must be model.mtp_layers.K (MiMo) or model.layers.N with eh_proj (DeepSeek)")
    matched = mimo or nextn
    _refuse([found[2] for found in matched.values()])
    places = {number: place for place, number in enumerate(sorted({found[1] for found in matched.values()}, key=int))}
    canonical: dict[str, str] = {}
    for name, found in sorted(matched.items(), key=lambda item: int(item[1][1])):
        number, part = found[1], found[2]
        if part == "self_attn.rotary_emb.inv_freq" or (nextn and part in _SHARED and places[number]):
            continue
        shared = _SHARED.get(part) if nextn else None
        new = shared or f"layers.{places[number]}.{_PARTS.get(part, part)}"
        if new in canonical.values():
            raise CheckpointError(f"tensor {new} is there under two names, one of them {name}")
        canonical[name] = new
    return "mimo" if mimo else "nextn", canonical


def _refuse(parts: Collection[str]) -> None:
    for pattern, kind in _UNSUPPORTED:
        if seen := next((part for part in parts if re.fullmatch(pattern, part)), None):
            raise CheckpointError(
                f"its MTP layers have {kind} ({seen}), supported are dense layers, as Llama's or Qwen's"
            )


def embedding_first(layout: Layout, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, of that name here, for embedding and state side by side; MiMo has the state first."""
    if layout == "nextn" or not name.endswith(".eh_proj.weight") or tensor.ndim != 2:
        return tensor
    return tensor.roll(tensor.shape[1] // 2, dims=1)


def check(config: HeadConfig, tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises CheckpointError, naming the tensor, unless every one is expected, there and of the right shape."""
    hidden, width = config.hidden_size, config.target_hidden_size
    required: dict[str, tuple[int, ...]] = {}
    optional: dict[str, tuple[int, ...]] = {}
    for layer in range(config.num_layers):
        prefix = f"layers.{layer}."
        required |= {prefix + "enorm.weight": (hidden,), prefix + "hnorm.weight": (width,)}
        required |= {prefix + "eh_proj.weight": (hidden, hidden + width), prefix + "final_norm.weight": (hidden,)}
        required |= {prefix + "input_layernorm.weight": (hidden,)} | dict(layer_shapes(config, layer, hidden))
        optional |= dict(optional_layer_shapes(config, layer))
    vocab = config.vocab_size or -1
    optional |= {"embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden)}
    check_groups(optional, tensors)
    check_tensors("MTP layers", tensors, required, optional)
