"""Budgets of drafting drawn at random, step by step, in the place of all that decides on trees.

Tokens are to be plain decoding's whatever the controller decides; so this decides anything.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import truncated
from verify_service.core.request_state import RequestState
from verify_service.speculation.acceptance_model import ProposedTree
from verify_service.speculation.node_selection import NodeSelector
from verify_service.speculation.tree_sizing import TreeSizer

MOST_DEPTH = 12


class RandomBudgets:
    """Who has a tree and who rests, how deep, how large, and what of it a step takes; drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self._pick = random.Random(seed)
        self.drawn: set[tuple[int, int]] = set()
        """Depths and rows that were asked for."""

    def depths(self, _: TreeSizer, states: Sequence[RequestState], running: int) -> list[int]:
        """In the place of `TreeSizer.depths`."""
        return [self._depth(state) for state in states]

    def rows(self, _: TreeSizer, state: RequestState, depth: int, running: int) -> int:
        """In the place of `TreeSizer.rows`."""
        if depth <= 0 or state.draft.max_nodes < 2:
            return 1
        rows = self._pick.randint(2, state.draft.max_nodes)
        self.drawn.add((depth, rows))
        return rows

    def choose(self, _: NodeSelector, trees: Sequence[ProposedTree], **__: object) -> list[TokenTree | None]:
        """In the place of `NodeSelector.choose`."""
        return [self._part(each.tree) for each in trees]

    def _depth(self, state: RequestState) -> int:
        state.draft.paused = self._pick.random() < 0.2
        if state.draft.paused or state.draft.catching_up or state.depth_left <= 0:
            return 0
        return 0 if self._pick.random() < 0.2 else self._pick.randint(1, min(MOST_DEPTH, state.depth_left))

    def _part(self, tree: TokenTree) -> TokenTree | None:
        nodes, depth = self._pick.randint(1, 1 + len(tree)), self._pick.randint(1, MOST_DEPTH)
        return truncated(tree, max_nodes=nodes, max_depth=depth)


@contextmanager
def random_budgets(seed: int) -> Iterator[RandomBudgets]:
    """All loops of this process decide at random, until the end."""
    budgets = RandomBudgets(seed)
    kept = TreeSizer.depths, TreeSizer.rows, NodeSelector.choose

    def depths(sizer: TreeSizer, states: Sequence[RequestState], running: int) -> list[int]:
        return budgets.depths(sizer, states, running)

    def rows(sizer: TreeSizer, state: RequestState, depth: int, running: int) -> int:
        return budgets.rows(sizer, state, depth, running)

    def choose(selector: NodeSelector, trees: Sequence[ProposedTree], **more: object) -> list[TokenTree | None]:
        return budgets.choose(selector, trees, **more)

    _replace(depths, rows, choose)
    try:
        yield budgets
    finally:
        _replace(*kept)


def _replace(depths: object, rows: object, choose: object) -> None:
    for kind, name, method in (
        (TreeSizer, "depths", depths),
        (TreeSizer, "rows", rows),
        (NodeSelector, "choose", choose),
    ):
        setattr(kind, name, method)
