"""Trees read from the words that a round has left on the host."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.ops.gpu.draft_trees import COUNT, LOG_PROBS, MOST_NODES, PARENTS
from slipstream_kernels.token_tree import TokenTree

Int32 = npt.NDArray[np.int32]

_OUT_OF_ORDER = -2


def trees_of(words: Int32) -> list[TokenTree]:
    """The trees of lines of `DraftTrees.result`; only columns that the largest of them fills are looked at."""
    counts = words[:, COUNT].tolist()
    most = min(max(counts, default=0), MOST_NODES)
    depths, facts = np.zeros((len(words), most), np.int32), np.zeros((len(words), 2), np.int32)
    measure(words, depths, facts)
    columns = zip(
        counts,
        words[:, :most].tolist(),
        words[:, PARENTS : PARENTS + most].tolist(),
        words[:, LOG_PROBS : LOG_PROBS + most].view(np.float32).tolist(),
        depths.tolist(),
        facts.tolist(),
        strict=True,
    )
    trees: list[TokenTree] = []
    for count, ids, parents, logs, levels, (depth, largest) in columns:
        lists = tuple(ids[:count]), tuple(parents[:count]), tuple(logs[:count])
        in_order = largest != _OUT_OF_ORDER
        trees.append(
            TokenTree.checked(*lists, tuple(levels[:count]), depth, largest) if in_order else TokenTree(*lists)
        )
    return trees


@kernel
def measure(words: Int32, depths: Int32, facts: Int32) -> None:
    """Write each node's depth, and of each tree the deepest level and the largest token id, -1 without nodes.

    `depths` [trees, most nodes], `facts` [trees, 2]. The largest id is -2 of a tree whose lists are not in order, as
    `TokenTree.validate` has it.
    """
    for tree in range(len(words)):
        deepest, largest = 0, -1
        for node in range(min(words[tree, COUNT], depths.shape[1])):
            parent, token = words[tree, PARENTS + node], words[tree, node]
            if not -1 <= parent < node or token < 0:
                largest = _OUT_OF_ORDER
                break
            depth = 1 if parent < 0 else depths[tree, parent] + 1
            depths[tree, node] = depth
            deepest, largest = max(deepest, depth), max(largest, token)
        facts[tree, 0], facts[tree, 1] = deepest, largest
