"""State of a request that is drafted ahead: the tree under verification, and the trees cached for its outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from draft_service.proposers.base import Opening, Proposer
from draft_service.protocol.records import EMPTY_TREE
from draft_service.worker.fan_out import FanOut
from slipstream_kernels.draft_protocol.records import Commit
from slipstream_kernels.token_tree import TokenTree

if TYPE_CHECKING:
    import torch


class CachedSpeculation(NamedTuple):
    """A tree sent ahead, and the forked session that made it."""

    fork: int
    tree_id: int
    tree: TokenTree


@dataclass(slots=True)
class AheadState:
    """One request: its tokens, the tree that the running step verifies as far as known, and trees for its outcomes.

    fan_out: the proposer's.
    outcomes_pending: the step's outcomes have no trees yet.
    cache: trees by the tokens that an outcome adds, the likeliest first.
    """

    opening: Opening
    fan_out: FanOut
    tree: TokenTree = EMPTY_TREE
    tree_id: int = 0
    outcomes_pending: bool = False
    cache: dict[tuple[int, ...], CachedSpeculation] = field(default_factory=dict)

    def advance(self, proposer: Proposer, session: int, record: Commit[torch.Tensor]) -> CachedSpeculation | None:
        """End the step: bring the session up to date and close all forks. Return the tree cached for its outcome.

        Raises whatever the proposer does.
        """
        cache, self.cache = self.cache, {}
        tokens = tuple(record.token_ids)
        rank = next((rank for rank, key in enumerate(cache) if key == tokens), None)
        self.fan_out.observe(len(cache), rank)
        found = cache.pop(tokens, None)
        for other in cache.values():
            proposer.close(other.fork)
        if found is None:
            proposer.commit(session, record.token_ids)
        else:
            proposer.adopt(session, found.fork, record.token_ids)
        self.opening = replace(self.opening, token_ids=[*self.opening.token_ids, *record.token_ids])
        self.tree, self.tree_id = EMPTY_TREE, 0
        return found

    def close(self, proposer: Proposer) -> None:
        """Close all forks. Raises whatever the proposer does."""
        cache, self.cache, self.outcomes_pending = self.cache, {}, False
        for each in cache.values():
            proposer.close(each.fork)
