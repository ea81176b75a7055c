"""What a tree that came too late for its step would have brought, seen from the tokens that followed."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream_kernels.token_tree import TokenTree


class LateTreeMatch:
    """Follows the text down a tree, from the state on that the tree was made for."""

    __slots__ = ("_at", "_tree", "right")

    def __init__(self, tree: TokenTree) -> None:
        self._tree = tree
        self._at = -1
        self.right = 0
        """Levels of it that the text has so far."""

    def follow(self, tokens: Sequence[int]) -> bool:
        """Take in the tokens that follow; returns whether the text has left the tree, so that nothing is added."""
        for token in tokens:
            children = self._tree.children(self._at)
            at = next((node for node in children if self._tree.token_ids[node] == token), None)
            if at is None:
                return True
            self._at, self.right = at, self.right + 1
        return not self._tree.children(self._at)
