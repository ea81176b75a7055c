"""Room for what the head makes of rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream_kernels.models.gpu.ranks.shard import Shard


@dataclass(frozen=True, slots=True)
class HeadBuffers:
    """Room for the logits of `rows` rows: `head_in` bfloat16 [rows, hidden], `logits` float32 [rows, vocab].

    Of ranks that share a model also float32 `part` [rows, vocab of the shard] and `parts` [ranks, rows, the same].
    """

    head_in: torch.Tensor
    logits: torch.Tensor
    part: torch.Tensor
    parts: torch.Tensor

    @classmethod
    def empty(cls, shard: Shard, rows: int, device: torch.device) -> HeadBuffers:
        """Buffers of their own."""
        config, ranks = shard.config, shard.size if shard.size > 1 else 0
        return cls(
            torch.empty(rows, config.hidden_size, dtype=torch.bfloat16, device=device),
            torch.empty(rows, config.vocab_size, dtype=torch.float32, device=device),
            torch.empty(rows if ranks else 0, shard.vocab_size, dtype=torch.float32, device=device),
            torch.empty(ranks * rows * shard.vocab_size, dtype=torch.float32, device=device),
        )

    @property
    def nbytes(self) -> int:
        return self.head_in.nbytes + self.logits.nbytes + self.part.nbytes + self.parts.nbytes

    def first(self, rows: int) -> HeadBuffers:
        """Those of fewer rows, in the same memory."""
        part, ranks = self.part[:rows], self.parts.numel() // max(1, self.part.numel())
        parts = self.parts[: ranks * part.numel()].view(ranks, *part.shape)
        return HeadBuffers(self.head_in[:rows], self.logits[:rows], part, parts)
