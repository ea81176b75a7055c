"""EAGLE-3 (arXiv 2503.01840): fused states of several boundaries, scores of its own, all unroll steps trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from training.common.model_shape import ModelShape
from training.fit.families.checkpoint_layout import public_config, shape_of
from training.fit.families.training_time_test import UnrolledHead
from training.fit.layers import Attention, GatedMLP, Linear, Norm, initialise
from training.fit.plan import Survey
from training.fit.settings import CHAIN, FitSettings
from training.fit.start import vocabulary_of
from training.fit.target import SCORES, TargetRows
from training.fit.vocabulary import DraftVocabulary, default_size, select

UNROLL = 7


class MidLayer(nn.Module):
    """A decoder layer that attends over embedding and state side by side, each after a norm of its own."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.hidden_norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.self_attn = Attention(shape, 2 * shape.hidden_size)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.mlp = GatedMLP(shape)


class Eagle3Weights(nn.Module):
    """Parameters under the names of the published checkpoints."""

    def __init__(self, shape: ModelShape, width: int, entries: int) -> None:
        super().__init__()
        self.fc = Linear(width, shape.hidden_size)
        self.midlayer = MidLayer(shape)
        self.norm = Norm(shape.hidden_size, shape.rms_norm_eps)
        self.lm_head = Linear(shape.hidden_size, entries)


class Eagle3:
    """The family."""

    def __init__(self, settings: FitSettings) -> None:
        self.settings = settings

    @property
    def steps(self) -> int:
        return self.settings.unroll or UNROLL

    @property
    def chain(self) -> int:
        return self.settings.chain or CHAIN

    def read(self, target: ModelConfig) -> tuple[int, ...]:
        """The boundaries that the head reads, in its order."""
        return self.settings.boundaries or default_boundaries(target.num_layers)

    def boundaries(self, target: ModelConfig) -> tuple[int, ...]:
        return *self.read(target), target.num_layers + 1

    def build(self, target: TargetRows, columns: dict[int, slice], survey: Survey) -> Eagle3Head:
        config = target.config
        size = self.settings.draft_vocab or default_size(config.vocab_size)
        if self.settings.start is None:
            vocabulary = select(survey.frequencies, size, config.eos_token_ids)
        else:
            vocabulary = vocabulary_of(self.settings.start, config.vocab_size)
            if self.settings.draft_vocab not in (0, len(vocabulary.ids)):
                raise ValueError(f"draft_vocab is {size}, {self.settings.start} scores {len(vocabulary.ids)} tokens")
        return Eagle3Head(target, self.settings, vocabulary, self.read(config), columns)


def default_boundaries(num_layers: int) -> tuple[int, ...]:
    """Those of the reference. ValueError where a model has too few layers for three different ones."""
    chosen = (2, num_layers // 2, num_layers - 3)
    if len(set(chosen)) < 3 or min(chosen) < 0:
        raise ValueError(f"boundaries: name them, since of {num_layers} layers 2, N/2 and N-3 are not three")
    return chosen


def joined(columns: Sequence[slice]) -> list[slice]:
    """The same columns in the same order, those that follow one another as one slice."""
    found = [columns[0]]
    for each in columns[1:]:
        if each.start == found[-1].stop:
            found[-1] = slice(found[-1].start, each.stop)
        else:
            found.append(each)
    return found


class Eagle3Head(UnrolledHead):
    """The residual of the layer is the state as it is; children take the state before the final norm."""

    def __init__(
        self,
        target: TargetRows,
        settings: FitSettings,
        vocabulary: DraftVocabulary,
        read: Sequence[int],
        columns: dict[int, slice],
    ) -> None:
        config = target.config
        shape = shape_of(config, settings.intermediate_size)
        super().__init__(target, settings, shape, vocabulary, columns[config.num_layers + 1])
        self._scores_are_lent = settings.freeze_scores and vocabulary.is_whole
        self._read, self._columns = tuple(read), joined([columns[boundary] for boundary in read])
        self.weights = Eagle3Weights(shape, len(read) * config.hidden_size, len(vocabulary.ids))
        initialise(self.weights, settings.seed)
        if settings.init == "target":
            self._begin_as_target()
        self.weights.lm_head.weight.requires_grad_(not settings.freeze_scores)
        self.weights.to(target.embedding.device)

    @property
    def module(self) -> nn.Module:
        return self.weights

    @property
    def _attention(self) -> Attention:
        return self.weights.midlayer.self_attn

    def _begin_as_target(self) -> None:
        """The last boundary's state runs through the target's last layer, which hardly sees the embedding yet."""
        theirs, hidden = self._target.last_layer(), self._shape.hidden_size
        weights, layer = self.weights, self.weights.midlayer
        with torch.no_grad():
            weights.fc.weight.mul_(0.1)
            weights.fc.weight[:, -hidden:] += torch.eye(hidden)
            weights.norm.weight.copy_(theirs["norm.weight"])
            weights.lm_head.weight.copy_(self._target.head[self._ids])
            layer.hidden_norm.weight.copy_(theirs["input_layernorm.weight"])
            layer.post_attention_layernorm.weight.copy_(theirs["post_attention_layernorm.weight"])
            for name in "qkv":
                projection = getattr(layer.self_attn, f"{name}_proj").weight
                projection[:, :hidden] *= 0.1
                projection[:, hidden:] = theirs[f"self_attn.{name}_proj.weight"]
            layer.self_attn.o_proj.weight.copy_(theirs["self_attn.o_proj.weight"])
            wide = self._target.config.intermediate_size
            if "mlp.gate_proj.weight" in theirs and wide <= self._shape.intermediate_size:
                for name in ("gate", "up"):
                    getattr(layer.mlp, f"{name}_proj").weight[:wide] = theirs[f"mlp.{name}_proj.weight"]
                layer.mlp.down_proj.weight[:, :wide] = theirs["mlp.down_proj.weight"]
                layer.mlp.down_proj.weight[:, wide:] = 0

    def _fuse(self, states: Tensor) -> Tensor:
        parts = [states[:, columns] for columns in self._columns]
        fused: Tensor = self.weights.fc(parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1))
        return fused

    def _enter(self, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.weights.midlayer
        return torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(state)), dim=-1), state

    def _leave(self, residual: Tensor, attended: Tensor) -> Tensor:
        layer = self.weights.midlayer
        x = residual + layer.self_attn.o_proj(attended)
        left: Tensor = x + layer.mlp(layer.post_attention_layernorm(x))
        return left

    def _scored(self, state: Tensor) -> Tensor:
        scored: Tensor = self.weights.norm(state)
        return scored

    def _score_weight(self) -> Tensor:
        return self.weights.lm_head.weight

    def tensors(self) -> dict[str, Tensor]:
        """As `training.fit.family.Head` has it. Where all scoring rows are the target's, they are left out."""
        weights = {name: tensor.detach().cpu() for name, tensor in self.weights.state_dict().items()}
        if self._scores_are_lent:
            del weights[SCORES]
        maps = {} if self._vocabulary.is_whole else {"d2t": self._vocabulary.d2t, "t2d": self._vocabulary.t2d}
        return weights | maps

    def config(self) -> dict[str, Any]:
        """As `training.fit.family.Head` has it."""
        target = self._target.config
        named = public_config(self._shape, target) | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": len(self._vocabulary.ids),
            "target_hidden_size": target.hidden_size,
        }
        if self._read != (2, target.num_layers // 2, target.num_layers - 3):
            named["eagle_aux_hidden_state_layer_ids"] = list(self._read)
        return named
