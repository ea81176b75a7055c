"""What Medusa heads compute (arXiv 2401.10774, section 2.1.1).

Head i takes h, the target's state that predicted token t, and scores token t + 1 + i: layer by layer
`x = x + SiLU(W x + b)` from x = h on, then scoring rows. The heads do not see one another's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from draft_service.heads.vocabulary import spread


@dataclass(frozen=True, slots=True)
class MedusaHead:
    """layers: weight float32 [hidden, hidden] and bias [hidden] of each. rows: float32 [entries, hidden]."""

    layers: Sequence[tuple[torch.Tensor, torch.Tensor | None]]
    rows: torch.Tensor


class MedusaHeads:
    """All heads of a checkpoint, on the CPU, in float32."""

    def __init__(
        self, heads: Sequence[MedusaHead], ids: torch.Tensor | None, target_size: int, scale: float = 1.0
    ) -> None:
        """ids: the target's id of each entry that is scored, int64; None where they are the same. scale: of logits."""
        self.target_size = target_size
        self.hidden_size = heads[0].rows.shape[1]
        self.entries = heads[0].rows.shape[0]
        self.heads = heads
        self.ids = ids
        self.scale = scale

    def __len__(self) -> int:
        return len(self.heads)

    def logits(self, head: int, states: torch.Tensor) -> torch.Tensor:
        """Scores of the token `head` + 1 places behind the one that `states`, float32 [rows, hidden], predicted.

        float32 [rows, target_size]; minus infinity for tokens that are not scored.
        """
        with torch.inference_mode():
            x = states
            for weight, bias in self.heads[head].layers:
                x = x + functional.silu(functional.linear(x, weight, bias))
            scores = functional.linear(x, self.heads[head].rows)
            return spread(scores if self.scale == 1 else scores * self.scale, self.ids, self.target_size)
