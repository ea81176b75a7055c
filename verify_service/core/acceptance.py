"""Sample, then match: which drafted nodes a step accepts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from slipstream.generation_types import SourceCount
from slipstream_kernels.token_tree import TokenTree

NO_TOKEN = -1
"""What is sampled where the logits decide nothing: one of them is no finite number. No node carries it."""


class AcceptedPath(NamedTuple):
    """The accepted path below the root, `nodes` in order, and the tokens decided along it.

    `tokens` has one entry more than `nodes`: `tokens[i]` was sampled at the row of `nodes[i - 1]`, the first one at
    the root. The last is the bonus token, or NO_TOKEN.
    """

    nodes: tuple[int, ...]
    tokens: tuple[int, ...]


VerifiedTree = tuple[TokenTree, tuple[int, ...]]
"""A drafter's tree as a step verified it, pruned and cut, and the accepted nodes of it that are output."""


def accept(tree: TokenTree, sampled: Sequence[int]) -> AcceptedPath:
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
    return AcceptedPath(tuple(nodes), tuple(tokens))


def truncated(tree: TokenTree, *, max_nodes: int, max_depth: int) -> TokenTree | None:
    """The part of a tree within both limits; `max_nodes` counts the root. None where no node is left."""
    tree = tree.truncated(max(0, max_nodes - 1), max(0, max_depth))
    return tree if len(tree) else None


def accepted_by_source(tree: TokenTree, accepted: Collection[int]) -> tuple[SourceCount, ...]:
    """The nodes of a tree, and those of them that were accepted, by proposer in the order in which they first appear.

    Empty where the tree is one proposer's own.
    """
    sources = tree.sources
    if not sources:
        return ()
    right = [sources[node] for node in accepted]
    return tuple(SourceCount(name, sources.count(name), right.count(name)) for name in dict.fromkeys(sources))


def child_of(tree: TokenTree | None, node: int, token: int) -> int | None:
    """Return the first child of a node, -1 for the root, that carries this token; None where there is none."""
    if tree is None:
        return None
    ids, parents, at = tree.token_ids, tree.parents, node
    try:
        while True:
            at = ids.index(token, at + 1)
            if parents[at] == node:
                return at
    except ValueError:
        return None


def match_path(tree: TokenTree, tokens: Sequence[int]) -> tuple[int, int]:
    """Where the path of these tokens from the root on ends, and its length; of equal siblings the first is followed."""
    ids, parents, at, count = tree.token_ids, tree.parents, -1, 0
    for token in tokens:
        node = at
        try:
            node = ids.index(token, node + 1)
            while parents[node] != at:
                node = ids.index(token, node + 1)
        except ValueError:
            break
        at, count = node, count + 1
    return at, count
