"""What a round works in: shared by all buckets, each of which uses the start of every buffer."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from slipstream_kernels.models.gpu.draft.networks.draft_forward import DraftShape, DraftSizes
from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits
from slipstream_kernels.ops.gpu.attention_state import AttentionPartials, attention_partials
from slipstream_kernels.ops.gpu.draft_top_k import DraftTopKWorkspace, draft_top_k_workspace
from slipstream_kernels.ops.gpu.draft_trees import DraftTrees, FrontierRows, draft_trees, frontier_rows
from slipstream_kernels.ops.gpu.position_splits import num_splits
from slipstream_kernels.token_tree import MAX_ROWS


@dataclass(frozen=True, slots=True)
class RoundTrees:
    """The trees of rounds of a number of sessions, and the rows of all their depths."""

    trees: DraftTrees
    depths: tuple[FrontierRows, ...]


class RoundBuffers:
    """int32 unless said otherwise."""

    def __init__(
        self, shape: DraftShape, limits: DraftLimits, sizes: DraftSizes, chain_rows: int, device: torch.device | str
    ) -> None:
        """chain_rows: most rows of text in a round; passes over text alone may have more."""
        self._limits = limits
        self._device = device
        self._trees: dict[int, RoundTrees] = {}
        scored, levels = sizes.node_rows, limits.max_depth

        def empty(*size: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(size, dtype=dtype, device=device)

        self.features = empty(sizes.text_rows, shape.features, dtype=torch.bfloat16)
        """bfloat16 [text rows, features], the target's states"""
        self.text_paths = empty(chain_rows, MAX_ROWS)
        self.text_depths = empty(chain_rows)
        self.no_paths = empty(sizes.sessions, MAX_ROWS)
        """of roots"""
        self.depths = empty(levels, scored).copy_(torch.arange(levels)[:, None])
        """[levels, rows], a row's own number: depths of all rows of a level; those of roots are 0"""
        self.logits = empty(scored, shape.entries, dtype=torch.float32)
        """float32 [rows, entries]"""
        self.places = empty(scored, limits.width)
        self.scores = empty(scored, limits.width, dtype=torch.float32)
        self.log_probs = empty(scored, limits.width, dtype=torch.float32)
        self.workspace = draft_top_k_workspace(scored, shape.entries, limits.width, device)
        splits = num_splits(limits.max_context + MAX_ROWS)
        self._partials = attention_partials(max(chain_rows, scored), shape.heads, splits, shape.head_dim, device)

    def partials(self, rows: int) -> AttentionPartials:
        """Of a pass of so many rows."""
        states = self._partials
        return AttentionPartials(states.m[:rows], states.l[:rows], states.o[:rows])

    def trees(self, sessions: int) -> RoundTrees:
        """Of rounds of so many sessions."""
        if sessions not in self._trees:
            width, levels = self._limits.width, self._limits.max_depth
            self._trees[sessions] = RoundTrees(
                draft_trees(sessions, width, self._device), frontier_rows(sessions, width, levels, self._device)
            )
        return self._trees[sessions]

    @property
    def nbytes(self) -> dict[str, int]:
        """Bytes of the attention's partial states, of logits and what is made of them, and of all else."""
        partials = _bytes_of(self._partials)
        logits = self.logits.nbytes + _bytes_of(self.workspace)
        others = (self.features, self.text_paths, self.text_depths, self.no_paths, self.depths, self.places)
        return {"partials": partials, "logits": logits, "rows": sum(tensor.nbytes for tensor in others)}


def _bytes_of(record: AttentionPartials | DraftTopKWorkspace) -> int:
    return sum(getattr(record, entry.name).nbytes for entry in fields(record))
