"""An MLP speculator's stages on the device (arXiv 2404.19124, section 3), each over the states of the stage before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt

import torch

from slipstream_kernels.models.gpu.draft.networks.draft_ops import DraftOps
from slipstream_kernels.models.gpu.draft.networks.scored_rows import limited_rows


@dataclass(frozen=True, slots=True)
class SpeculatorStage:
    """bfloat16, contiguous. What stages share is the same tensor.

    projection: [inner, width of the states before]. table: [vocabulary, inner], of embeddings. scale, shift: of the
    norm, [inner]. rows: [entries, inner].
    """

    projection: torch.Tensor
    table: torch.Tensor
    scale: torch.Tensor
    shift: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class SpeculatorWeights:
    """ids: int32 [entries], the target's id of each entry, None where both are the same.

    embedding_weight: of embeddings beside projected states. eps: of the norms. scale_input: the target's state is
    normalised and divided by the square root of 2.
    """

    stages: Sequence[SpeculatorStage]
    ids: torch.Tensor | None
    embedding_weight: float
    eps: float
    scale_input: bool

    @property
    def nbytes(self) -> int:
        """Bytes, what is shared counted once."""
        tensors = [
            tensor
            for stage in self.stages
            for tensor in (stage.projection, stage.table, stage.scale, stage.shift, stage.rows)
        ]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())

    @property
    def entries(self) -> int:
        """Tokens that are scored."""
        return len(self.stages[0].rows)

    def limited(self, size: int) -> SpeculatorWeights:
        """The same stages, scoring ids below `size` alone."""
        limited, ids = limited_rows([stage.rows for stage in self.stages], self.ids, size)
        stages = [replace(stage, rows=rows) for stage, rows in zip(self.stages, limited, strict=True)]
        return replace(self, stages=stages, ids=ids)

    def forward(self, ops: DraftOps) -> SpeculatorForward:
        """What computes these stages."""
        return SpeculatorForward(self, ops)


class SpeculatorForward:
    """A `HiddenStateForward`."""

    independent = False

    def __init__(self, weights: SpeculatorWeights, ops: DraftOps) -> None:
        self.weights = weights
        self.levels = len(weights.stages)
        self.features = weights.stages[0].projection.shape[1]
        self.entries = weights.entries
        self._inner = len(weights.stages[0].projection)
        self._ops = ops

    @property
    def device(self) -> torch.device:
        return self.weights.stages[0].rows.device

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
        self._normed, self._sums = buffers["normed"], buffers["sums"]
        self._states = buffers["even"], buffers["odd"]
        self._ones = torch.ones(self.features, dtype=torch.bfloat16, device=self.device)
        self._rows = 0
        """of the pass computed last"""

    def roots(self, states: torch.Tensor, token_ids: torch.Tensor, levels: int) -> None:
        weight, eps = self.weights.embedding_weight, self.weights.eps
        if self.weights.scale_input:
            normed = self._normed[: len(states)]
            self._ops.layers.rms_norm(states, self._ones, normed, eps)
            # The sums are left larger by the square root of 2, which their norm takes back.
            states, weight, eps = normed, weight * sqrt(2), eps * 2
        self._stage(0, states, None, token_ids, weight, eps)

    def nodes(self, depth: int, token_ids: torch.Tensor, parent_rows: torch.Tensor) -> None:
        before = self._states[(depth - 1) % 2][: self._rows]
        self._stage(depth, before, parent_rows, token_ids, self.weights.embedding_weight, self.weights.eps)

    def score(self, depth: int, logits: torch.Tensor) -> None:
        self._ops.layers.linear(self._states[depth % 2][: len(logits)], self.weights.stages[depth].rows, logits)

    def score_levels(self, logits: torch.Tensor) -> None:
        raise NotImplementedError("a stage's scores depend on the tokens before")

    def _stage(
        self,
        depth: int,
        before: torch.Tensor,
        parent_rows: torch.Tensor | None,
        token_ids: torch.Tensor,
        weight: float,
        eps: float,
    ) -> None:
        """States of the stage `depth`, one for each token, from those `before`."""
        stage, sums, n = self.weights.stages[depth], self._sums[: len(before)], len(token_ids)
        self._ops.layers.linear(before, stage.projection, sums)
        self._ops.speculator_state(
            sums,
            parent_rows,
            token_ids,
            stage.table,
            weight,
            stage.scale,
            stage.shift,
            eps,
            self._states[depth % 2][:n],
        )
        self._rows = n

    def _sizes(self, sessions: int, width: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        nodes = sessions * width
        return {
            "normed": ((sessions if self.weights.scale_input else 0, self.features), torch.bfloat16),
            "sums": ((nodes, self._inner), torch.float32),
            "even": ((nodes, self._inner), torch.bfloat16),
            "odd": ((nodes, self._inner), torch.bfloat16),
        }
