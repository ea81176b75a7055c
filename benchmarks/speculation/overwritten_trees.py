"""Trees of the host that take the place of those that a device drafts, as these would be there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.ops.gpu.draft_trees import COUNT, LOG_PROBS, PARENTS, TREE_WIDTH
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

_TOKENS = 2 + MAX_ROWS
"""Column of a pass's results at which committed tokens begin."""


class OverwrittenTrees:
    """Implements `DeviceTrees`."""

    def __init__(self, drafted: Sequence[DeviceTree], trees: Sequence[TokenTree]) -> None:
        """`drafted`, all of one round, are waited for wherever `trees` are asked for."""
        self._drafted, self._trees = drafted, trees
        self._words = torch.zeros(len(trees), TREE_WIDTH, dtype=torch.int32, pin_memory=torch.cuda.is_available())
        for line, tree in zip(self._words.numpy(), trees, strict=True):
            count = len(tree)
            line[:count], line[COUNT], line[PARENTS : PARENTS + count] = tree.token_ids, count, tree.parents
            line[LOG_PROBS : LOG_PROBS + count] = np.array(tree.log_probs or (0.0,) * count, np.float32).view(np.int32)

    def queue(self) -> torch.Tensor:
        """See `DeviceTrees`."""
        there = self._drafted[0].trees.queue()
        return self._words.to(there.device, non_blocking=True)

    def read(self, row: int) -> TokenTree:
        """See `DeviceTrees`."""
        self._drafted[row].read()
        return self._trees[row]


class PromisedTrees:
    """Implements `DeviceTrees` for a round behind a pass: made as they are first asked for, which is after that pass.

    Before anything of them is asked for, the pass must be over; its results are read then.
    """

    def __init__(
        self, drafted: Sequence[DeviceTree], results: torch.Tensor, make: Callable[[list[list[int]]], OverwrittenTrees]
    ) -> None:
        """results: int32 [n, 130] as `tree_walk` writes them. make: the trees, from each row's committed tokens."""
        self.bounds = [(tree.most_nodes, tree.most_depth) for tree in drafted]
        self._results = results
        self._make = make
        self._made: OverwrittenTrees | None = None

    def queue(self) -> torch.Tensor:
        """See `DeviceTrees`."""
        return self._trees().queue()

    def read(self, row: int) -> TokenTree:
        """See `DeviceTrees`."""
        return self._trees().read(row)

    def _trees(self) -> OverwrittenTrees:
        if self._made is None:
            decided = self._results.cpu().tolist()
            self._made = self._make([row[_TOKENS : _TOKENS + row[0] + 1] for row in decided])
        return self._made
