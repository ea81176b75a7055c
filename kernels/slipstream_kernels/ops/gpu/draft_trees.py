"""Token trees while they grow on the device, and the rows of the passes that expand them.

A *place* is an index into the vocabulary that a draft scores, a token id one into the target's. Trees of all sessions
grow level by level: the root's children have depth 1. The nodes of a depth that are expanded, its frontier, are `width`
rows a session of one pass. Rows of all depths are numbered through the round: depth 1 first, then by session.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream_kernels.token_tree import MAX_ROWS

MOST_NODES = MAX_ROWS - 1
"""Drafted nodes of the largest tree."""
TREE_WIDTH = 3 * MAX_ROWS
"""Words of a tree in `DraftTrees.result`."""
COUNT, PARENTS, LOG_PROBS = MOST_NODES, MAX_ROWS, 2 * MAX_ROWS
"""Where a tree has its number of nodes, its parents and its log-probabilities; token ids come first."""


@dataclass(frozen=True, slots=True)
class DraftTrees:
    """The trees of all sessions of a round. Parents come before children; nodes are in the order they were added."""

    result: torch.Tensor
    """int32 [sessions, TREE_WIDTH]: token ids, the number of nodes, parents (-1: the root), and the bits of float32
    log-probabilities of the paths. What lies behind the last node is undefined."""
    scores: torch.Tensor
    """float32 [sessions, MAX_ROWS], by which the nodes are ranked"""
    frontier: torch.Tensor
    """int32 [sessions, width], nodes to be expanded next, ascending; -1 where there are fewer"""


@dataclass(frozen=True, slots=True)
class FrontierRows:
    """The rows of one depth, `width` a session; a row without a node computes what nobody reads."""

    token_ids: torch.Tensor
    """int32 [rows], target ids; 0 without a node"""
    places: torch.Tensor
    """int32 [rows], part of `all_places`; 0 without a node"""
    parent_rows: torch.Tensor
    """int32 [rows], the parent's row in the pass before, which at depth 1 is the session; always one that exists"""
    logit_rows: torch.Tensor
    """int32 [rows], the row itself, -1 without a node"""
    paths: torch.Tensor
    """int32 [rows, MAX_ROWS], rows of the round from the root's child to the node, and on with the node's own"""
    first_row: int
    """the number in the round of the first row"""
    all_places: torch.Tensor
    """int32 [rows of all depths]"""


def draft_trees(sessions: int, width: int, device: torch.device | str) -> DraftTrees:
    """Empty trees whose nodes have up to `width` children."""
    return DraftTrees(
        result=torch.zeros(sessions, TREE_WIDTH, dtype=torch.int32, device=device),
        scores=torch.zeros(sessions, MAX_ROWS, dtype=torch.float32, device=device),
        frontier=torch.full((sessions, width), -1, dtype=torch.int32, device=device),
    )


def frontier_rows(sessions: int, width: int, levels: int, device: torch.device | str) -> tuple[FrontierRows, ...]:
    """Rows of depths 1 to levels - 1, none of them with a node."""
    rows = sessions * width
    all_places = torch.zeros((levels - 1) * rows, dtype=torch.int32, device=device)
    depths = []
    for first_row in range(0, len(all_places), rows):
        own = torch.arange(first_row, first_row + rows, dtype=torch.int32, device=device)
        depths.append(
            FrontierRows(
                token_ids=torch.zeros(rows, dtype=torch.int32, device=device),
                places=all_places[first_row : first_row + rows],
                parent_rows=torch.zeros(rows, dtype=torch.int32, device=device),
                logit_rows=torch.full((rows,), -1, dtype=torch.int32, device=device),
                paths=own[:, None].repeat(1, MAX_ROWS),
                first_row=first_row,
                all_places=all_places,
            )
        )
    return tuple(depths)
