"""What became of the trees of one proposer in one attachment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream_kernels.token_tree import TokenTree


@dataclass(slots=True)
class Tally:
    """Counters from the attachment's start.

    `hits` and `misses` count trees that were there when a step asked for them, and those that a step waited for in
    vain; `late` trees that came for a state which had passed. `drafted` and `accepted` count tokens of the trees that
    steps took, where the request went on afterwards.
    """

    hits: int = 0
    misses: int = 0
    late: int = 0
    drafted: int = 0
    accepted: int = 0

    def settle(self, tree: TokenTree, tokens: Sequence[int]) -> None:
        """A step that was given `tree` has committed `tokens`, the last of which is no node's."""
        self.drafted += len(tree)
        self.accepted += matched(tree, tokens[:-1])


def matched(tree: TokenTree, tokens: Sequence[int]) -> int:
    """How many of the tokens are a path from the root on; of equal siblings the first is followed."""
    at, count = -1, 0
    for node, (parent, token) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
        if count < len(tokens) and parent == at and token == tokens[count]:
            at, count = node, count + 1
    return count
