"""MLP speculator (arXiv 2404.19124; IBM's accelerators): a recurrent state, moved on by each drafted token."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.fit.batch import Batch
from training.fit.families.distilled_head import Drafted, JudgedHead
from training.fit.families.last_state import HeadPerStepFamily
from training.fit.layers import Linear, initialise
from training.fit.settings import FitSettings
from training.fit.target import TargetRows
from training.fit.vocabulary import DraftVocabulary

STAGES = 5
_EPS = 1e-6


class ScaledNorm(nn.Module):
    """Divided by the root of the mean square, then scaled and shifted."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        """[n, size], computed in float32."""
        return (normed(x.float()) * self.weight + self.bias).to(x.dtype)


def normed(x: Tensor) -> Tensor:
    """[n, size] divided by the root of the mean square of each row."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _EPS)


class Speculator(nn.Module):
    """Parameters under the names of IBM's checkpoints, shared by the stages as far as `tie_weights` says."""

    def __init__(self, vocab_size: int, hidden: int, inner: int) -> None:
        super().__init__()
        self.emb = nn.ModuleList([nn.Embedding(vocab_size, inner)])
        self.proj = nn.ModuleList([Linear(hidden, inner), Linear(inner, inner)])
        self.ln = nn.ModuleList([ScaledNorm(inner)])
        self.head = nn.ModuleList([Linear(inner, vocab_size)])


class MlpSpeculator(HeadPerStepFamily):
    """The family. `unroll` is the number of stages, `intermediate_size` the width of their state."""

    usual_steps = STAGES

    def __init__(self, settings: FitSettings) -> None:
        super().__init__(settings)
        if settings.unroll == 1:
            raise ValueError("unroll: an MLP speculator has at least 2 stages")
        self.check_chain("stages")

    def head(self, target: TargetRows, final: slice) -> MlpSpeculatorHead:
        """As `LastStateFamily` has it."""
        return MlpSpeculatorHead(target, self.settings, final, self.steps)


class MlpSpeculatorHead(JudgedHead):
    """All stages share embedding, norm and scores, and those behind the first one projection.

    The embedding is weighed so that half of the last stage's variance is the target's state, which is normalised.
    """

    def __init__(self, target: TargetRows, settings: FitSettings, final: slice, stages: int) -> None:
        config = target.config
        super().__init__(target, settings, DraftVocabulary.whole(config.vocab_size), final)
        inner = settings.intermediate_size or config.hidden_size
        self._inner, self._stages = inner, stages
        state_weight = 0.5 ** (0.5 / stages)
        self._embedding_weight = math.sqrt((1 - state_weight**2) * inner / 2) / state_weight
        self.weights = Speculator(config.vocab_size, config.hidden_size, inner)
        initialise(self.weights, settings.seed)
        with torch.no_grad():
            for name, parameter in self.weights.named_parameters():
                if name.endswith("bias"):
                    parameter.zero_()
            if settings.init == "target" and inner == config.hidden_size:
                self._begin_as_target()
        self.weights.to(target.embedding.device)

    @property
    def module(self) -> nn.Module:
        return self.weights

    def _begin_as_target(self) -> None:
        """Scores and embedding are the target's, the latter at the size that drawn ones would have."""
        embedding = self._target.embedding.float().cpu()
        self._weight("head").copy_(self._target.head)
        self._weight("emb").copy_(embedding / embedding.square().mean().sqrt() * self._inner**-0.5)

    def _weight(self, part: str, stage: int = 0) -> Tensor:
        weight = getattr(self.weights, part)[stage].weight
        assert isinstance(weight, Tensor)
        return weight

    def draft(self, batch: Batch, steps: int, noise: int | None = None) -> Drafted:
        """As `JudgedHead` has it; there are no more steps than stages."""
        states = batch.states.flatten(0, 1)[:, self._final].index_select(0, batch.at(0))
        state = (normed(states.float()) / math.sqrt(2)).to(states.dtype)
        parts = list[Tensor]()
        for step in range(min(steps, self._stages)):
            tokens = batch.ahead(step).flatten().index_select(0, batch.at(step))
            embedded = F.embedding(tokens, self._weight("emb")).to(state.dtype)
            projected = self.weights.proj[min(step, 1)](state)
            parts.append(F.gelu(self.weights.ln[0](projected + self._embedding_weight * embedded)))
            state = parts[-1][: len(batch.at(step + 1))]
        return self._joined(parts, batch)

    def _scored(self, state: Tensor) -> Tensor:
        return state

    def _score_weight(self) -> Tensor:
        return self._weight("head")

    def tensors(self) -> dict[str, Tensor]:
        """As `training.fit.family.Head` has it."""
        return {f"speculator.{name}": tensor.detach().cpu() for name, tensor in self.weights.state_dict().items()}

    def config(self) -> dict[str, Any]:
        """As `training.fit.family.Head` has it."""
        target = self._target.config
        return {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            "emb_dim": target.hidden_size,
            "inner_dim": self._inner,
            "vocab_size": target.vocab_size,
            "n_predict": self._stages,
            "n_candidates": self._stages,
            "top_k_tokens_per_head": [1] * self._stages,
            "tie_weights": True,
            "scale_input": True,
        }
