"""MTP (MiMo, arXiv 2505.07608; DeepSeek-V3, arXiv 2412.19437, section 2.2): one layer that is its own successor.

It is written in MiMo's layout. Unrolled over several steps it learns to go on from the states that it leaves itself,
as it does when it drafts more than one token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from training.common.model_shape import ModelShape
from training.fit.families.checkpoint_layout import public_config, shape_of
from training.fit.families.last_state import LastStateFamily
from training.fit.families.training_time_test import UnrolledHead
from training.fit.layers import Attention, GatedMLP, Linear, Norm, initialise
from training.fit.settings import FitSettings
from training.fit.target import TargetRows
from training.fit.vocabulary import DraftVocabulary

UNROLL = 5


class MtpLayer(nn.Module):
    """Parameters under the names of MiMo's checkpoints."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        hidden, eps = shape.hidden_size, shape.rms_norm_eps
        self.token_layernorm = Norm(hidden, eps)
        self.hidden_layernorm = Norm(hidden, eps)
        self.input_proj = Linear(2 * hidden, hidden)
        self.input_layernorm = Norm(hidden, eps)
        self.self_attn = Attention(shape, hidden)
        self.post_attention_layernorm = Norm(hidden, eps)
        self.mlp = GatedMLP(shape)
        self.final_layernorm = Norm(hidden, eps)


class Mtp(LastStateFamily):
    """The family."""

    usual_steps = UNROLL

    def head(self, target: TargetRows, final: slice) -> MtpHead:
        """As `LastStateFamily` has it."""
        return MtpHead(target, self.settings, final)


class MtpHead(UnrolledHead):
    """Children take the state behind the layer's final norm, which is also what is scored."""

    def __init__(self, target: TargetRows, settings: FitSettings, final: slice) -> None:
        shape = shape_of(target.config, settings.intermediate_size)
        super().__init__(target, settings, shape, DraftVocabulary.whole(target.config.vocab_size), final)
        self.layer = MtpLayer(shape)
        initialise(self.layer, settings.seed)
        if settings.init == "target":
            self._begin_as_target()
        self.layer.to(target.embedding.device)

    @property
    def module(self) -> nn.Module:
        return self.layer

    @property
    def _attention(self) -> Attention:
        return self.layer.self_attn

    def _begin_as_target(self) -> None:
        """The state goes through nearly as it is; what the layer adds to it begins small."""
        hidden, layer = self._shape.hidden_size, self.layer
        with torch.no_grad():
            layer.input_proj.weight.mul_(0.1)
            layer.input_proj.weight[:, :hidden] += torch.eye(hidden)
            layer.self_attn.o_proj.weight.mul_(0.1)
            layer.mlp.down_proj.weight.mul_(0.1)
            layer.final_layernorm.weight.fill_(float(self._target.final_norm().square().mean().sqrt()))

    def _fuse(self, states: Tensor) -> Tensor:
        return states[:, self._final]

    def _enter(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.layer
        joined = layer.input_proj(torch.cat((layer.hidden_layernorm(state), layer.token_layernorm(embedded)), dim=-1))
        return layer.input_layernorm(joined), joined

    def _leave(self, residual: Tensor, attended: Tensor) -> Tensor:
        layer = self.layer
        x = residual + layer.self_attn.o_proj(attended)
        left: Tensor = layer.final_layernorm(x + layer.mlp(layer.post_attention_layernorm(x)))
        return left

    def _scored(self, state: Tensor) -> Tensor:
        return state

    def _score_weight(self) -> Tensor:
        return self._target.head

    def tensors(self) -> dict[str, Tensor]:
        """As `training.fit.family.Head` has it."""
        return {f"model.mtp_layers.0.{name}": tensor.detach().cpu() for name, tensor in self.layer.state_dict().items()}

    def config(self) -> dict[str, Any]:
        """As `training.fit.family.Head` has it."""
        named = {"architectures": ["MiMoMTPModel"], "model_type": "mimo", "num_nextn_predict_layers": 1}
        return public_config(self._shape, self._target.config) | named
