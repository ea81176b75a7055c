"""EAGLE-1 (arXiv 2401.15077), whose weights EAGLE-2 uses: regress the target's next state, score with its rows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.common.model_shape import ModelShape
from training.fit.families.checkpoint_layout import public_config, shape_of
from training.fit.families.distilled_head import Drafted
from training.fit.families.last_state import LastStateFamily
from training.fit.families.training_time_test import UnrolledHead
from training.fit.layers import Attention, GatedMLP, Linear, Norm, initialise
from training.fit.settings import FitSettings
from training.fit.target import TargetRows
from training.fit.vocabulary import DraftVocabulary

UNROLL = 1
SCORE_WEIGHT = 0.1
"""Of the cross-entropy, beside 1 of the regression."""
NOISE = 0.1
"""The target's states are disturbed by uniform noise of at most so much, as a drafter's own are not exact either."""


class Layer(nn.Module):
    """A decoder layer that normalises nothing before its attention."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape, shape.hidden_size)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = GatedMLP(shape)


class Eagle1Weights(nn.Module):
    """Parameters under the names of the published checkpoints."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.fc = Linear(2 * shape.hidden_size, shape.hidden_size)
        self.layers = nn.ModuleList([Layer(shape)])


class Eagle1(LastStateFamily):
    """The family. Unrolled over more steps than one it is trained as HASS (arXiv 2408.15766) proposes."""

    usual_steps = UNROLL

    def head(self, target: TargetRows, final: slice) -> Eagle1Head:
        """As `LastStateFamily` has it."""
        return Eagle1Head(target, self.settings, final)


class Eagle1Head(UnrolledHead):
    """fc joins embedding and state; what the layer gives is the state that children take, and what is scored."""

    repeats = False
    _score_share = SCORE_WEIGHT

    def __init__(self, target: TargetRows, settings: FitSettings, final: slice) -> None:
        shape = shape_of(target.config, settings.intermediate_size)
        super().__init__(target, settings, shape, DraftVocabulary.whole(target.config.vocab_size), final)
        self.weights = Eagle1Weights(shape)
        initialise(self.weights, settings.seed)
        self._layer: Any = self.weights.layers[0]
        if settings.init == "target":
            self._begin_as_target()
        self.weights.to(target.embedding.device)

    @property
    def module(self) -> nn.Module:
        return self.weights

    @property
    def _attention(self) -> Attention:
        attention: Attention = self._layer.self_attn
        return attention

    def _begin_as_target(self) -> None:
        """The state goes through as it is; what the layer adds to it begins small."""
        hidden = self._shape.hidden_size
        with torch.no_grad():
            self.weights.fc.weight.mul_(0.1)
            self.weights.fc.weight[:, hidden:] += torch.eye(hidden)
            self._layer.self_attn.o_proj.weight.mul_(0.1)
            self._layer.mlp.down_proj.weight.mul_(0.1)

    def _fuse(self, states: Tensor) -> Tensor:
        return states[:, self._final]

    def _enter(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        joined: Tensor = self.weights.fc(torch.cat((embedded, state), dim=-1))
        return joined, joined

    def _leave(self, residual: Tensor, attended: Tensor) -> Tensor:
        x = residual + self._layer.self_attn.o_proj(attended)
        left: Tensor = x + self._layer.mlp(self._layer.post_attention_layernorm(x))
        return left

    def _scored(self, state: Tensor) -> Tensor:
        return state

    def _score_weight(self) -> Tensor:
        return self._target.head

    def _disturb(self, states: Tensor, noise: int) -> Tensor:
        generator = torch.Generator(states.device).manual_seed(noise)
        uniform = torch.rand(states.shape, generator=generator, device=states.device)
        return states + ((2 * uniform - 1) * NOISE).to(states.dtype)

    def _regress(self, drafted: Drafted, truth: Tensor, places: Tensor, weights: Tensor) -> Tensor:
        """Smooth L1 to the target's states, the mean over their entries."""
        decayed = weights * self._decay**drafted.step
        distance = F.smooth_l1_loss(
            drafted.states.float(), truth.index_select(0, places).float(), reduction="none"
        ).mean(dim=-1)
        return (distance * decayed).sum()

    def tensors(self) -> dict[str, Tensor]:
        """As `training.fit.family.Head` has it."""
        return {name: tensor.detach().cpu() for name, tensor in self.weights.state_dict().items()}

    def config(self) -> dict[str, Any]:
        """As `training.fit.family.Head` has it."""
        named = {"architectures": ["LlamaForCausalLMEagle"], "bias": False}
        return public_config(self._shape, self._target.config) | named
