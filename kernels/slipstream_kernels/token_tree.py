"""A tree of drafted tokens under a root: token ids and parents. Depths, masks and paths are derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_ROWS = 64
"""Rows of the largest tree a verify step takes, the root included."""


class InvalidTreeError(ValueError):
    """A tree that breaks a rule of `TokenTree.validate`."""


@dataclass(slots=True, unsafe_hash=True)  # not frozen: steps make hundreds of trees, and checks would take most of that
class TokenTree:
    """Node i carries `token_ids[i]` and hangs below node `parents[i]`, or below the root where that is -1.

    The root itself is not among the nodes. Parents come before children: `parents[i] < i`.
    `log_probs`, where given, holds the natural logarithm of each node's path probability. `sources`, where given, names
    the proposer that each node is counted for, in a tree of several. Nobody changes a tree that is made.
    """

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    log_probs: tuple[float, ...] | None = None
    sources: tuple[str, ...] | None = None
    _depths: tuple[int, ...] | None = field(default=None, init=False, repr=False, compare=False)
    """of `depths`, once they are known"""
    _depth: int | None = field(default=None, init=False, repr=False, compare=False)
    """of `depth`, once it is known"""
    _largest: int | None = field(default=None, init=False, repr=False, compare=False)
    """the largest token id, once the lists have been found to be in order"""

    @classmethod
    def chain(cls, token_ids: Sequence[int]) -> TokenTree:
        """A tree of one path."""
        return cls(tuple(token_ids), tuple(range(-1, len(token_ids) - 1)))

    @classmethod
    def checked(
        cls,
        token_ids: tuple[int, ...],
        parents: tuple[int, ...],
        log_probs: tuple[float, ...] | None,
        depths: tuple[int, ...],
        depth: int,
        largest: int,
    ) -> TokenTree:
        """One whose lists were found to be in order as they were read; `largest` is the largest token id, or -1."""
        tree = cls(token_ids, parents, log_probs)
        tree._depths, tree._depth, tree._largest = depths, depth, largest
        return tree

    def __len__(self) -> int:
        """Number of nodes, the root not counted."""
        return len(self.token_ids)

    @property
    def depths(self) -> tuple[int, ...]:
        """Distance of each node from the root; children of the root have depth 1."""
        if self._depths is None:
            depths: list[int] = []
            for parent in self.parents:
                depths.append(1 if parent < 0 else depths[parent] + 1)
            self._depths = tuple(depths)
        return self._depths

    @property
    def depth(self) -> int:
        """Length of the longest path below the root."""
        if self._depth is None:
            self._depth = max(self.depths, default=0)
        return self._depth

    def path(self, node: int) -> tuple[int, ...]:
        """Indices of the nodes from the root's child down to `node`, both ends included."""
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def children(self, node: int) -> tuple[int, ...]:
        """Indices of the children of `node` (-1 for the root), in order."""
        return tuple(i for i, parent in enumerate(self.parents) if parent == node)

    def truncated(self, max_nodes: int, max_depth: int) -> TokenTree:
        """The subtree that keeps, in order, nodes of depth at most `max_depth`, `max_nodes` of them at most."""
        kept: dict[int, int] = {-1: -1}
        for node, (parent, depth) in enumerate(zip(self.parents, self.depths, strict=True)):
            if len(kept) <= max_nodes and depth <= max_depth and parent in kept:
                kept[node] = len(kept) - 1
        return self.part([node for node in kept if node >= 0])

    def part(self, nodes: Sequence[int]) -> TokenTree:
        """The subtree of these nodes, ascending indices; each one's parent must be among them or the root."""
        moved = {node: index for index, node in enumerate(nodes)} | {-1: -1}
        return TokenTree(
            tuple(self.token_ids[node] for node in nodes),
            tuple(moved[self.parents[node]] for node in nodes),
            None if self.log_probs is None else tuple(self.log_probs[node] for node in nodes),
            None if self.sources is None else tuple(self.sources[node] for node in nodes),
        )

    def validate(self, *, vocab_size: int, max_nodes: int, max_depth: int) -> None:
        """Raise InvalidTreeError unless lists fit, parents precede children, and ids, size and depth are in range.

        `max_nodes` counts nodes without the root.
        """
        largest = self._check_lists() if self._largest is None else self._largest
        if len(self.token_ids) > max_nodes:
            raise InvalidTreeError(f"{len(self.token_ids)} nodes, limit {max_nodes}")
        if largest >= vocab_size:
            node = next(node for node, token in enumerate(self.token_ids) if token >= vocab_size)
            raise InvalidTreeError(f"token_ids[{node}] is {self.token_ids[node]}, vocabulary has {vocab_size}")
        if self.depth > max_depth:
            raise InvalidTreeError(f"depth {self.depth}, limit {max_depth}")

    def _check_lists(self) -> int:
        """What `validate` asks of a tree whatever the limits. Returns the largest token id, -1 without nodes."""
        ids, parents = self.token_ids, self.parents
        if len(ids) != len(parents):
            raise InvalidTreeError(f"{len(ids)} token_ids but {len(parents)} parents")
        if self.log_probs is not None and len(self.log_probs) != len(ids):
            raise InvalidTreeError(f"{len(ids)} token_ids but {len(self.log_probs)} log_probs")
        depths: list[int] = []
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                raise InvalidTreeError(f"parents[{node}] is {parent}, must be from -1 to {node - 1}")
            depths.append(1 if parent < 0 else depths[parent] + 1)
        if len(ids) and min(ids) < 0:
            node = next(node for node, token in enumerate(ids) if token < 0)
            raise InvalidTreeError(f"token_ids[{node}] is {ids[node]}, must be 0 or more")
        largest = max(ids) if len(ids) else -1
        if type(ids) is tuple and type(parents) is tuple:  # which nobody changes afterwards
            self._largest, self._depths = largest, tuple(depths)
        return largest

    def walk(self, root_token: int, node_tokens: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Follow sampled tokens from the root: sample, then match.

        `root_token` is the token sampled at the root's row and `node_tokens[i]` the one sampled at node i's row.
        Returns (nodes accepted in order, tokens committed); the last committed token is the bonus token, so there
        is one more of them than nodes. Of equal siblings the first is followed.
        """
        accepted: list[int] = []
        committed = [root_token]
        node = -1
        while True:
            node = next((i for i in self.children(node) if self.token_ids[i] == committed[-1]), -1)
            if node < 0:
                return tuple(accepted), tuple(committed)
            accepted.append(node)
            committed.append(node_tokens[node])
