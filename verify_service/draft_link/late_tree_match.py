"""How deep a tree that came too late for its step matches the tokens that were committed instead."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_kernels.token_tree import TokenTree


class LateTreeMatch:
    """Walks a late tree along the committed tokens, from the state that the tree was made for."""

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
