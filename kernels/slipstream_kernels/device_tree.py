"""A drafted tree whose nodes a device has before the host: a step may be queued with it meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slipstream_kernels.token_tree import TokenTree

if TYPE_CHECKING:
    import torch


class DeviceTrees(Protocol):
    """The trees of one round on a device."""

    def queue(self) -> torch.Tensor:
        """int32 [any, TREE_WIDTH] on the device, as `DraftTrees.result`, for what is queued next on the current stream.

        They stay until the pass that verifies them is over, if it is the next one of the target.
        """
        ...

    def read(self, row: int) -> TokenTree:
        """One of them; waits for it. To be called before the pass that verifies it is over."""
        ...


class DeviceTree(TokenTree):
    """A tree of `most_nodes` nodes and `most_depth` levels at most. Whoever looks at its nodes waits for them.

    `trees` has it in `row`.
    """

    __slots__ = ("_read", "most_depth", "most_nodes", "row", "trees")

    trees: DeviceTrees
    row: int
    most_nodes: int
    most_depth: int
    _read: TokenTree | None

    def __init__(self, trees: DeviceTrees, row: int, most_nodes: int, most_depth: int) -> None:
        self.trees = trees
        self.row = row
        self.most_nodes = most_nodes
        self.most_depth = most_depth
        self._read = None

    def read(self) -> TokenTree:
        """The tree on the host."""
        if self._read is None:
            self._read = self.trees.read(self.row)
        return self._read

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    @property
    def token_ids(self) -> tuple[int, ...]:  # type: ignore[override]  # nobody writes a tree's
        return self.read().token_ids

    @property
    def parents(self) -> tuple[int, ...]:  # type: ignore[override]  # nobody writes a tree's
        return self.read().parents

    @property
    def log_probs(self) -> tuple[float, ...] | None:  # type: ignore[override]  # nobody writes a tree's
        return self.read().log_probs

    @property
    def sources(self) -> tuple[str, ...] | None:  # type: ignore[override]  # nobody writes a tree's
        return self.read().sources

    @property
    def depths(self) -> tuple[int, ...]:
        return self.read().depths

    @property
    def depth(self) -> int:
        return self.read().depth

    def validate(self, *, vocab_size: int, max_nodes: int, max_depth: int) -> None:
        self.read().validate(vocab_size=vocab_size, max_nodes=max_nodes, max_depth=max_depth)


def most_rows(tree: TokenTree | None) -> tuple[int, int]:
    """Nodes and levels that a tree has at most; as many as it has where the host knows it."""
    if isinstance(tree, DeviceTree):
        return tree.most_nodes, tree.most_depth
    return (0, 0) if tree is None else (len(tree), tree.depth)


def known(tree: TokenTree | None) -> TokenTree | None:
    """The tree on the host; waits for it."""
    return tree.read() if isinstance(tree, DeviceTree) else tree
