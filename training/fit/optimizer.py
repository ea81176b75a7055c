"""What turns gradients into steps."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

from training.fit.settings import FitSettings

BETAS: Final = (0.9, 0.95)
"""Of Adam, as EAGLE-3 is published."""
ROWS_OF_TOKENS: Final = frozenset({"lm_head", "head", "embed_tokens", "emb"})
"""Parts of names of matrices that have a row for each token: a step moves few of them, and none as a whole."""


class Optimizer:
    """AdamW; or for matrices Muon (Jordan et al., 2024), whose steps are as large as AdamW's."""

    def __init__(self, module: nn.Module, settings: FitSettings) -> None:
        named = {name: each for name, each in module.named_parameters() if each.requires_grad}
        self.parameters: list[nn.Parameter] = list(named.values())
        moved = {name for name, each in named.items() if settings.optimizer == "muon" and _is_whole(name, each)}
        rest = [each for name, each in named.items() if name not in moved]
        rate, decay = settings.lr, settings.weight_decay
        self._parts: list[torch.optim.Optimizer] = []
        if rest:
            self._parts.append(torch.optim.AdamW(rest, lr=rate, betas=BETAS, weight_decay=decay, fused=True))
        if moved:
            matrices = [each for name, each in named.items() if name in moved]
            self._parts.append(torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))

    def step(self, rate: float) -> None:
        """Follow the gradients at a learning rate."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()

    def forget(self) -> None:
        """Remove the gradients."""
        for part in self._parts:
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """What a checkpoint holds of it."""
        return [part.state_dict() for part in self._parts]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Go on from `state`."""
        for part, of_part in zip(self._parts, state, strict=True):
            part.load_state_dict(of_part)


def _is_whole(name: str, parameter: Tensor) -> bool:
    """Whether it is a matrix that maps states to states."""
    return parameter.ndim == 2 and ROWS_OF_TOKENS.isdisjoint(name.split("."))
