"""What an MLP speculator computes (arXiv 2404.19124, section 3; IBM's accelerators).

Stage i takes the state of the stage before, at first the target's state that predicted token t, and token t + i, and
scores token t + 1 + i: `state = GELU(norm_i(proj_i(state) + w emb_i(token)))`, `logits = head_i(state)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from draft_service.heads.eagle import Vocabulary

EPS = 1e-6
"""Of all norms"""


@dataclass(frozen=True, slots=True)
class Stage:
    """projection: float32 [inner, states' width]. scale, shift: of the norm, [inner]."""

    projection: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor
    vocabulary: Vocabulary


class MlpSpeculator:
    """All stages of a checkpoint, on the CPU, in float32.

    The weight w of the embedding keeps half of the last stage's variance for the target's state:
    sqrt((1 - s^2) inner / 2) / s with s = 0.5 ^ (0.5 / stages).
    """

    def __init__(self, stages: Sequence[Stage], *, scale_input: bool) -> None:
        """scale_input: the target's state is normalised and divided by the square root of 2."""
        inner, self.hidden_size = stages[0].projection.shape
        self.target_size = stages[0].vocabulary.target_size
        self.entries = len(stages[0].vocabulary.head)
        self.stages = stages
        self.scale_input = scale_input
        state_weight = 0.5 ** (0.5 / len(stages))
        self.embedding_weight = math.sqrt((1 - state_weight**2) * inner / 2) / state_weight

    def __len__(self) -> int:
        return len(self.stages)

    def forward(self, stage: int, states: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """States of the stage, float32 [rows, inner].

        states: float32 [rows, width], the target's for stage 0, else those of the stage before. token_ids: int64
        [rows], the tokens that the states before predicted, as they were decided or drafted.
        """
        each = self.stages[stage]
        with torch.inference_mode():
            if stage == 0 and self.scale_input:
                states = _normed(states) / math.sqrt(2)
            embedded = functional.embedding(token_ids, each.vocabulary.embedding)
            x = functional.linear(states, each.projection) + self.embedding_weight * embedded
            return functional.gelu(_normed(x) * each.scale + each.shift)

    def logits(self, stage: int, states: torch.Tensor) -> torch.Tensor:
        """Scores of the next token from what `forward` gave, float32 [rows, target vocabulary]."""
        with torch.inference_mode():
            return self.stages[stage].vocabulary.logits(states)


def _normed(x: torch.Tensor) -> torch.Tensor:
    """Divided by the root of the mean square; the mean itself stays."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
