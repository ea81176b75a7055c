"""A head as it was read from its folder, as the weights of a GPU's passes."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from draft_service.heads.config import HeadConfig
from draft_service.heads.eagle import Eagle3, EagleHead
from draft_service.heads.mtp import MtpHead
from draft_service.proposers.gpu_common.supported_shapes import NoGpuFormError, check_room, check_shapes
from draft_service.proposers.gpu_common.weight_rounding import tell_rounding
from slipstream_kernels.models.gpu.draft.networks.eagle_weights import EagleWeights, HeadLayerWeights, gate_up_of

_JOINED_NORMS = {
    "eagle": ("enorm.weight", "hnorm.weight"),
    "eagle3": ("layers.0.input_layernorm.weight", "layers.0.hidden_norm.weight"),
    "mtp": ("layers.0.enorm.weight", "layers.0.hnorm.weight"),
}
"""Of embedding and state, side by side."""


def head_weights(head: EagleHead, device: torch.device) -> EagleWeights:
    """The head's weights, rounded to bfloat16. Raises NoGpuFormError, or CheckpointError where there is no room."""
    config, vocabulary = head.config, head.vocabulary
    _check(config, device)
    is_mtp, fused = isinstance(head, MtpHead), isinstance(head, Eagle3)
    if is_mtp and config.num_layers > 1:
        raise NoGpuFormError(f"it has {config.num_layers} MTP layers; a GPU takes one")
    take = _Tensors(head.weights, device)
    check_room(_bytes_of(head), device)
    tell_rounding((*head.weights.values(), vocabulary.embedding, vocabulary.head), device)
    embedding = take.placed(vocabulary.embedding)
    tied = vocabulary.head.data_ptr() == vocabulary.embedding.data_ptr()
    return EagleWeights(
        fused=fused,
        post_norm=isinstance(head, Eagle3 | MtpHead) and head.post_norm,
        residual_normed=config.norm_before_residual,
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
        num_states=head.num_states,
        embedding=embedding,
        head=embedding if tied else take.placed(vocabulary.head),
        ids=None if vocabulary.ids is None else vocabulary.ids.to(device, torch.int32),
        fc=take["layers.0.eh_proj.weight" if is_mtp else "fc.weight"],
        fc_bias=take.optional("fc.bias"),
        input_norm=take.optional("input_norm.weight"),
        fc_norms=tuple(
            norm for state in range(head.num_states) if (norm := take.optional(f"fc_norm.{state}.weight")) is not None
        ),
        embedding_norm=take.optional(_JOINED_NORMS[head.family][0]),
        state_norm=take.optional(_JOINED_NORMS[head.family][1]),
        layers=tuple(_layer(take, index, joined=fused and index == 0) for index in range(config.num_layers)),
        final_norm=take.optional("layers.0.final_norm.weight" if is_mtp else "norm.weight"),
    )


class _Tensors:
    """Tensors by canonical names, moved to the device."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self._tensors = tensors
        self._device = device

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.placed(self._tensors[name])

    def optional(self, name: str) -> torch.Tensor | None:
        return self[name] if name in self._tensors else None

    def joined(self, names: list[str]) -> torch.Tensor:
        return self.placed(torch.cat([self._tensors[name] for name in names]))

    def joined_if_any(self, names: list[str]) -> torch.Tensor | None:
        return self.joined(names) if names[0] in self._tensors else None

    def placed(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._device, torch.bfloat16).contiguous()


def _layer(take: _Tensors, index: int, *, joined: bool) -> HeadLayerWeights:
    """joined: the layer reads what `join_rows` wrote, whose norms are not its own."""
    prefix = f"layers.{index}."
    attention = prefix + "self_attn."
    parts = [f"{attention}{name}_proj." for name in "qkv"]
    return HeadLayerWeights(
        input_norm=None if joined else take.optional(prefix + "input_layernorm.weight"),
        qkv=take.joined([part + "weight" for part in parts]),
        qkv_bias=take.joined_if_any([part + "bias" for part in parts]),
        q_norm=take.optional(attention + "q_norm.weight"),
        k_norm=take.optional(attention + "k_norm.weight"),
        o=take[attention + "o_proj.weight"],
        post_norm=take[prefix + "post_attention_layernorm.weight"],
        gate_up=gate_up_of(take[prefix + "mlp.gate_proj.weight"], take[prefix + "mlp.up_proj.weight"]),
        down=take[prefix + "mlp.down_proj.weight"],
    )


def _check(config: HeadConfig, device: torch.device) -> None:
    sizes = {
        "hidden_size": config.hidden_size,
        "target_hidden_size": config.target_hidden_size,
        "intermediate_size": config.intermediate_size,
    }
    check_shapes(sizes, heads=config.num_heads, kv_heads=config.num_kv_heads, head_dim=config.head_dim, device=device)


def _bytes_of(head: EagleHead) -> int:
    """Of its weights, what is shared counted once."""
    tensors = (*head.weights.values(), head.vocabulary.embedding, head.vocabulary.head)
    return sum({tensor.data_ptr(): 2 * tensor.numel() for tensor in tensors}.values())
