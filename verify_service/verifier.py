"""Sample, then match: which drafted nodes a step accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipstream_kernels.token_tree import TokenTree

NO_TOKEN = -1
"""What is sampled where the logits decide nothing: one of them is no finite number. No node carries it."""


class Walk(NamedTuple):
    """The accepted path below the root, `nodes` in order, and the tokens decided along it.

    `tokens` has one entry more than `nodes`: `tokens[i]` was sampled at the row of `nodes[i - 1]`, the first one at
    the root. The last is the bonus token, or NO_TOKEN.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]


def walk(tree: TokenTree, sampled: Sequence[int]) -> Walk:
    """Follow the sampled tokens from the root, as long as a child carries them.

    `sampled[0]` was sampled at the root, `sampled[1 + i]` at node i. As parents come before their children, one pass
    over the nodes finds the path; of equal siblings the first is followed.
    """
    nodes: list[int] = []
    tokens = [sampled[0]]
    at = -1
    for node, (parent, token) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
        if parent == at and token == tokens[-1]:
            at = node
            nodes.append(node)
            tokens.append(sampled[1 + node])
    return Walk(tuple(nodes), tuple(tokens))


def cut(tree: TokenTree, *, max_nodes: int, max_depth: int) -> TokenTree | None:
    """The part of a tree within both limits; `max_nodes` counts the root. None where no node is left."""
    tree = tree.truncated(max(0, max_nodes - 1), max(0, max_depth))
    return tree if len(tree) else None
