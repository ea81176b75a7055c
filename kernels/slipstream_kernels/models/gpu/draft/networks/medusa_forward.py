"""Medusa heads on the device (arXiv 2401.10774, section 2.1.1): all of them in one pass over the target's states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from slipstream_kernels.models.gpu.draft.networks.draft_ops import DraftOps
from slipstream_kernels.models.gpu.draft.networks.scored_rows import limited_rows


@dataclass(frozen=True, slots=True)
class MedusaWeights:
    """bfloat16, contiguous, but for `ids`. Layers that are the same module may be the same tensors.

    layers: matrix [heads * hidden, hidden], the first head's rows first, and bias [heads * hidden], if any, of each.
    rows: [entries, hidden] of each head; the same tensor where heads share it. ids: int32 [entries], the target's id of
    each entry, None where both are the same. scale: of logits.
    """

    layers: Sequence[tuple[torch.Tensor, torch.Tensor | None]]
    rows: Sequence[torch.Tensor]
    ids: torch.Tensor | None
    scale: float

    @property
    def nbytes(self) -> int:
        """Bytes, what is shared counted once."""
        tensors = [each for pair in self.layers for each in pair if each is not None] + list(self.rows)
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())

    @property
    def entries(self) -> int:
        """Tokens that are scored."""
        return len(self.rows[0])

    def limited(self, size: int) -> MedusaWeights:
        """The same heads, scoring ids below `size` alone."""
        rows, ids = limited_rows(self.rows, self.ids, size)
        return replace(self, rows=rows, ids=ids)

    def forward(self, ops: DraftOps) -> MedusaForward:
        """What computes these heads."""
        return MedusaForward(self, ops)


class MedusaForward:
    """A `HiddenStateForward`. Tensors of a round lie at the start of flat buffers, as its sizes say."""

    independent = True

    def __init__(self, weights: MedusaWeights, ops: DraftOps) -> None:
        self.weights = weights
        self.levels = len(weights.rows)
        self.features = weights.rows[0].shape[1]
        self.entries = weights.entries
        self._ops = ops
        self._shared = len({rows.data_ptr() for rows in weights.rows}) == 1
        self._width = 1
        self._heads = torch.empty(0)
        """bfloat16 [levels, sessions, features] of the round, what the heads' layers leave"""

    @property
    def device(self) -> torch.device:
        return self.weights.rows[0].device

    @property
    def vocabulary(self) -> torch.Tensor | None:
        return self.weights.ids

    @property
    def nbytes(self) -> int:
        return self.weights.nbytes

    def activation_bytes(self, sessions: int, width: int) -> int:
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self._sizes(sessions, width).values())

    def allocate(self, sessions: int, width: int) -> None:
        buffers = {
            name: torch.zeros(shape, dtype=dtype, device=self.device)
            for name, (shape, dtype) in self._sizes(sessions, width).items()
        }
        self._sums, self._states, self._repeated = buffers["sums"], buffers["states"], buffers["repeated"]
        self._width = width
        self._sessions = torch.arange(sessions * width, dtype=torch.int32, device=self.device) // width

    def roots(self, states: torch.Tensor, token_ids: torch.Tensor, levels: int) -> None:
        n, width = states.shape
        layers, linear = self.weights.layers, self._ops.layers.linear
        self._heads = heads = self._states[: levels * n * width].view(levels, n, width)
        for number, (matrix, bias) in enumerate(layers):
            scale = self.weights.scale if number == len(layers) - 1 else 1.0
            if number == 0:  # of one input, so that all heads' rows make one matrix
                sums = self._sums[: n * levels * width].view(n, levels * width)
                linear(states, matrix[: levels * width], sums, bias=None if bias is None else bias[: levels * width])
                by_head = sums.view(n, levels, width).transpose(0, 1)
                self._ops.residual_silu(states.expand(levels, n, width), by_head, scale, heads)
                continue
            by_head = self._sums[: levels * n * width].view(levels, n, width)
            for head in range(levels):
                own = slice(head * width, (head + 1) * width)
                linear(heads[head], matrix[own], by_head[head], bias=None if bias is None else bias[own])
            self._ops.residual_silu(heads, by_head, scale, heads)

    def nodes(self, depth: int, token_ids: torch.Tensor, parent_rows: torch.Tensor) -> None:
        """Each node has the state of its session's root, by the head of its depth."""
        n = len(token_ids)
        self._ops.gather_norm(self._heads[depth], self._sessions[:n], None, self._repeated[:n], 0.0)

    def score(self, depth: int, logits: torch.Tensor) -> None:
        states = self._repeated[: len(logits)] if depth else self._heads[0]
        self._ops.layers.linear(states, self.weights.rows[depth], logits)

    def score_levels(self, logits: torch.Tensor) -> None:
        levels, n, width = self._heads.shape
        if self._shared:
            self._ops.layers.linear(self._heads.view(levels * n, width), self.weights.rows[0], logits)
            return
        for level, rows in enumerate(self.weights.rows[:levels]):
            self._ops.layers.linear(self._heads[level], rows, logits[level * n : (level + 1) * n])

    def _sizes(self, sessions: int, width: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        numbers = self.levels * sessions * self.features
        return {
            "sums": ((numbers,), torch.float32),
            "states": ((numbers,), torch.bfloat16),
            "repeated": ((sessions * width, self.features), torch.bfloat16),
        }
