"""Medusa (arXiv 2401.10774): a residual layer for each token ahead, all from the target's last state, none in turn."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.fit.batch import Batch
from training.fit.families.distilled_head import Drafted, JudgedHead
from training.fit.families.last_state import HeadPerStepFamily
from training.fit.layers import initialise
from training.fit.settings import FitSettings
from training.fit.target import TargetRows
from training.fit.vocabulary import DraftVocabulary

HEADS = 5


class ResidualBlock(nn.Module):
    """`x + SiLU(W x + b)`, from W = 0 and b = 0 on."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[n, hidden] in the type of x."""
        linear = F.linear(x, self.linear.weight.to(x.dtype), self.linear.bias.to(x.dtype))
        return x + F.silu(linear)


class Medusa(HeadPerStepFamily):
    """The family. `unroll` is the number of heads."""

    usual_steps = HEADS

    def __init__(self, settings: FitSettings) -> None:
        super().__init__(settings)
        if settings.intermediate_size:
            raise ValueError("intermediate_size: Medusa heads have no MLP of their own")
        self.check_chain("heads")

    def head(self, target: TargetRows, final: slice) -> MedusaHead:
        """As `LastStateFamily` has it."""
        return MedusaHead(target, self.settings, final, self.steps)


class MedusaHead(JudgedHead):
    """All heads of a checkpoint in the original's layout; scoring rows are the target's, which all of them share."""

    def __init__(self, target: TargetRows, settings: FitSettings, final: slice, heads: int) -> None:
        config = target.config
        super().__init__(target, settings, DraftVocabulary.whole(config.vocab_size), final)
        self._heads = [ResidualBlock(config.hidden_size) for _ in range(heads)]
        self.blocks = nn.ModuleList(nn.ModuleList([head]) for head in self._heads)
        initialise(self.blocks, settings.seed)
        with torch.no_grad():
            for name, parameter in self.blocks.named_parameters():
                if settings.init == "target" or name.endswith("bias"):
                    parameter.zero_()
        self.blocks.to(target.embedding.device)

    @property
    def module(self) -> nn.Module:
        return self.blocks

    def draft(self, batch: Batch, steps: int, noise: int | None = None) -> Drafted:
        """As `JudgedHead` has it; there are no more steps than heads."""
        states = batch.states.flatten(0, 1)[:, self._final]
        heads = self._heads[:steps]
        parts = [head(states.index_select(0, batch.at(step))) for step, head in enumerate(heads)]
        return self._joined(parts, batch)

    def _scored(self, state: Tensor) -> Tensor:
        return state

    def _score_weight(self) -> Tensor:
        return self._target.head

    def tensors(self) -> dict[str, Tensor]:
        """As `training.fit.family.Head` has it."""
        return {name: tensor.detach().cpu() for name, tensor in self.blocks.state_dict().items()}

    def config(self) -> dict[str, Any]:
        """As `training.fit.family.Head` has it."""
        target = self._target.config
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "medusa_num_heads": len(self.blocks),
            "medusa_num_layers": 1,
            "medusa_fc_bias": True,
        }
