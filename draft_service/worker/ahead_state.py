"""A request that is drafted ahead: the tree under verification, and the trees made for outcomes of its step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from draft_service.proposers.base import Opening, Proposer
from draft_service.protocol.records import EMPTY_TREE, Commit
from draft_service.worker.fan_out import FanOut
from slipstream_kernels.token_tree import TokenTree


class CachedSpeculation(NamedTuple):
    """A tree that was sent ahead, and the fork that made it."""

    fork: int
    tree_id: int
    tree: TokenTree


@dataclass(slots=True)
class AheadState:
    """One request's tokens, the tree that the step from them verifies as far as known, and what was prepared.

    `due`: outcomes of that step have yet to be looked at. `prepared` has the tokens that an outcome adds as key, the
    likeliest first. `fan_out` is the proposer's.
    """

    opening: Opening
    fan_out: FanOut
    tree: TokenTree = EMPTY_TREE
    tree_id: int = 0
    due: bool = False
    prepared: dict[tuple[int, ...], CachedSpeculation] = field(default_factory=dict)

    def advance(self, proposer: Proposer, session: int, record: Commit) -> CachedSpeculation | None:
        """The step is over: bring the session up to date and close all forks. Returns what was prepared for this end.

        Raises whatever the proposer does.
        """
        prepared, self.prepared = self.prepared, {}
        tokens = tuple(record.token_ids)
        rank = next((rank for rank, key in enumerate(prepared) if key == tokens), None)
        self.fan_out.observe(len(prepared), rank)
        found = prepared.pop(tokens, None)
        for other in prepared.values():
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
        prepared, self.prepared, self.due = self.prepared, {}, False
        for each in prepared.values():
            proposer.close(each.fork)
