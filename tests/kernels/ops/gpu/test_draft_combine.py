from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from draft_service.proposers.tree_expansion import Expansion
from slipstream_kernels.ops.gpu.draft_combine import MOST_LEVELS, draft_combine, draft_combine_reference
from slipstream_kernels.ops.gpu.draft_trees import COUNT, LOG_PROBS, PARENTS, DraftTrees, draft_trees
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree

LIMITS = [(63, 20), (5, 4), (0, 0), (63, 2), (12, 3), (1, 1), (2, 9), (30, 0)]
"""(nodes, levels) of sessions, two of them without a tree."""


def finished(trees: DraftTrees, session: int) -> TokenTree:
    words = trees.result[session].cpu()
    count = int(words[COUNT])
    log_probs = words[LOG_PROBS : LOG_PROBS + count].view(torch.float32).tolist()
    return TokenTree(tuple(words[:count].tolist()), tuple(words[PARENTS : PARENTS + count].tolist()), tuple(log_probs))


def scored(rng: np.random.Generator, levels: int, width: int) -> tuple[np.ndarray, ...]:
    """Places, scores and log-probabilities by level and session, best first, with many ties; some places are missing.

    Sums of the scores are exact.
    """
    size = (levels, len(LIMITS), width)
    places = rng.integers(0, 50, size).astype(np.int32)
    scores = -np.sort(rng.integers(0, 9, size), axis=2).astype(np.float32) / 4
    log_probs = -rng.integers(0, 90, size).astype(np.float32) / 8
    counts = rng.integers(0, 3 * width, size[:2])
    counts[:, 0] = width
    there = np.arange(width) < counts[..., None]
    places[~there], scores[~there], log_probs[~there] = -1, -np.inf, -np.inf
    return places, scores, log_probs


@pytest.mark.parametrize("op", [draft_combine, draft_combine_reference])
@pytest.mark.parametrize(("levels", "width"), [(1, 3), (3, 16), (4, 10), (5, 2), (MOST_LEVELS, 1)])
def test_keeps_what_expansion_keeps_that_expands_all(op: Any, levels: int, width: int, device: torch.device) -> None:
    rng = np.random.default_rng(width)
    given = scored(rng, levels, width)
    limits = torch.tensor(LIMITS, dtype=torch.int32, device=device)
    vocabulary = torch.arange(100, 200, dtype=torch.int32, device=device) if width == 10 else None
    shift = 0 if vocabulary is None else 100
    trees = draft_trees(len(LIMITS), width, device)
    trees.result.fill_(7)
    op(*(torch.from_numpy(each).flatten(0, 1).to(device) for each in given), limits, vocabulary, trees)
    sizes = []
    for session, (budget, depth) in enumerate(LIMITS):
        branch = Expansion(width=MAX_ROWS, budget=budget, max_depth=min(depth, levels))
        while budget and branch.frontier and branch.depth < min(depth, levels):
            places, *others = (each[branch.depth, session] for each in given)
            rows = [places[places >= 0] + shift, *(each[places >= 0] for each in others)]
            branch.extend(*([row.tolist()] * len(branch.frontier) for row in rows))
        tree = finished(trees, session)
        assert tree == branch.tree()
        tree.validate(vocab_size=200, max_nodes=budget, max_depth=depth)
        sizes.append(len(tree))
    assert max(sizes) == min(63, sum(width**level for level in range(1, levels + 1)))
