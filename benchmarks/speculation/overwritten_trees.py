"""Trees of the host that take the place of those that a device drafts, as these would be there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.ops.gpu.draft_trees import COUNT, LOG_PROBS, PARENTS, TREE_WIDTH
from slipstream_kernels.token_tree import TokenTree


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
