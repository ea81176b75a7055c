"""Medusa heads and MLP speculators on the CPU that round weights and states to bfloat16 where a GPU's rounds do."""

from __future__ import annotations

import torch
from torch.nn import functional

from draft_service.heads.eagle import Vocabulary
from draft_service.heads.medusa import MedusaHead, MedusaHeads
from draft_service.heads.mlp_speculator import EPS, MlpSpeculator, Stage
from draft_service.heads.vocabulary import spread


class RoundedMedusa(MedusaHeads):
    def logits(self, head: int, states: torch.Tensor) -> torch.Tensor:
        x = states
        layers = self.heads[head].layers
        for number, (weight, bias) in enumerate(layers):
            x = x + functional.silu(functional.linear(x, weight, bias))
            x = rounded(x if number < len(layers) - 1 else x * self.scale)
        return spread(functional.linear(x, self.heads[head].rows), self.ids, self.target_size)


class RoundedSpeculator(MlpSpeculator):
    def forward(self, stage: int, states: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        if stage or not self.scale_input:
            return rounded(super().forward(stage, states, token_ids))
        # The rounded norm of the state takes the place of the state, whose own norm is one.
        self.scale_input = False
        try:
            normed = rounded(states * torch.rsqrt(states.square().mean(-1, keepdim=True) + EPS))
            return rounded(super().forward(stage, normed * 0.5**0.5, token_ids))
        finally:
            self.scale_input = True


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.bfloat16().float()


def as_on_a_gpu(head: MedusaHeads | MlpSpeculator) -> RoundedMedusa | RoundedSpeculator:
    """The same head with the roundings of a GPU's."""
    once: dict[int, torch.Tensor] = {}

    def r(tensor: torch.Tensor) -> torch.Tensor:
        return once.setdefault(tensor.data_ptr(), rounded(tensor))

    if isinstance(head, MedusaHeads):
        heads = [
            MedusaHead([(r(weight), None if bias is None else r(bias)) for weight, bias in each.layers], r(each.rows))
            for each in head.heads
        ]
        return RoundedMedusa(heads, head.ids, head.target_size, head.scale)
    stages = []
    for stage in head.stages:
        known = stage.vocabulary
        vocabulary = Vocabulary(r(known.embedding), r(known.head), known.ids, known.target_size)
        stages.append(Stage(r(stage.projection), r(stage.scale), r(stage.shift), vocabulary))
    return RoundedSpeculator(stages, scale_input=head.scale_input)
