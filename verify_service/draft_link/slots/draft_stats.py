"""Acceptance statistics of one proposer in one attachment, trees that came too late included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.generation_types import SourceCount
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.acceptance import VerifiedTree, accepted_by_source
from verify_service.core.acceptance_history import FADE
from verify_service.draft_link.slots.answer_time import AnswerTimes

_PRIOR_TREES = 4.0
"""Prior of the mean: so many trees of which nothing was accepted."""


@dataclass(slots=True)
class DraftStats:
    """Counters from the attachment's start.

    `hits` and `misses` count trees that were there when a step asked for them, and those that a step waited for in
    vain; `late` trees that came when their step had begun; `waits` steps that waited, for one tree or for several.
    `drafted` and `accepted` count tokens of the trees that steps verified, as these were pruned and cut.

    `sources` shares out `drafted` and `accepted` of trees that several proposers made, by the proposer's name; there is
    at most one entry for each offer of the attachment.

    `handed` counts trees that steps took on the device, before any host knew them, and `unmade` those that steps were
    launched for and the drafter did not make.

    `partial_sessions` counts requests that the drafter was opened for without the hidden states of all older tokens,
    where its proposer wants states.
    """

    hits: int = 0
    misses: int = 0
    late: int = 0
    drafted: int = 0
    accepted: int = 0
    waits: int = 0
    sources: dict[str, SourceCount] = field(default_factory=dict)
    partial_sessions: int = 0
    handed: int = 0
    unmade: int = 0
    answers: AnswerTimes = field(default_factory=AnswerTimes, compare=False)
    _observed_trees: float = field(default=0.0, compare=False)
    _accepted_levels: float = field(default=0.0, compare=False)
    """Weights of observed trees, and of their levels that were accepted; old ones decay."""

    @property
    def mean_accepted(self) -> float:
        """Mean accepted tokens per tree, weighted towards recent trees and by the prior towards 0."""
        return self._accepted_levels / (self._observed_trees + _PRIOR_TREES)

    def observe(self, levels: int) -> None:
        """Add one tree of which so many levels match the committed tokens, in time or too late for its step."""
        self._observed_trees += 1.0 - FADE * self._observed_trees
        self._accepted_levels += levels - FADE * self._accepted_levels

    def count(self, verified: Sequence[VerifiedTree]) -> None:
        """Count the trees that steps verified."""
        for tree, nodes in verified:
            self.drafted += len(tree)
            self.accepted += len(nodes)
            for name, drafted, accepted in accepted_by_source(tree, nodes) if tree.sources else ():
                before = self.sources.get(name, SourceCount(name, 0, 0))
                self.sources[name] = SourceCount(name, before.drafted + drafted, before.accepted + accepted)


class LateTreeMatch:
    """How deep a tree that came too late for its step matches the tokens that were committed instead.

    Walks the tree along these tokens, from the state that it was made for.
    """

    __slots__ = ("_node", "_tree", "matched_depth")

    def __init__(self, tree: TokenTree) -> None:
        self._tree = tree
        self._node = -1
        self.matched_depth = 0
        """Levels of the tree that the committed tokens contain so far."""

    def advance(self, tokens: Sequence[int]) -> bool:
        """Match the tokens committed next. Return whether the match is final: they left the tree, or reached a leaf."""
        for token in tokens:
            children = self._tree.children(self._node)
            node = next((child for child in children if self._tree.token_ids[child] == token), None)
            if node is None:
                return True
            self._node, self.matched_depth = node, self.matched_depth + 1
        return not self._tree.children(self._node)
