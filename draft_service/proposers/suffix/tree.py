"""A suffix tree of limited depth that counts: how often each run of tokens occurs in its text, and what follows it.

Every position of the text is a *suffix*, entered to `max_depth` tokens. Edges are compressed (a node stands for a run
of tokens) and a suffix that has left all others needs no further work: its leaf's edge is the text itself (E. Ukkonen,
"On-line construction of suffix trees", 1995). The suffixes that still run along others are *active*; they are the
shortest ones, at most `max_depth`, and each is known by the edge it stands on. So they are also the answer to "where
did the end of this text occur before", for every length at once.

*Counts*: an edge counts the suffixes that have entered it. Where a suffix leaves in the middle of an edge, the edge is
split there, and the lower part loses the active ones that had not come so far. *References*: the last suffix to pass a
node becomes the place where its tokens are read, hence a sequence that is removed first-in, first-out is referred to
by no node that outlives it (E. R. Fiala and D. H. Greene, "Data compression with finite windows", 1989).

Cost: an appended token moves the active suffixes by one token each; a removed suffix walks from its leaf to the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from draft_service.proposers.jit import compiled
from draft_service.proposers.suffix.memory import (
    COUNT,
    DEPTH,
    FIELDS,
    FIRST,
    LAST,
    PARENT,
    RING,
    START,
    TERMINATOR,
    TOKEN,
    TreeMemory,
    tree_at,
)
from draft_service.proposers.suffix.nodes import (
    ROOT,
    add_child,
    child_of,
    count_down,
    count_up,
    free_node,
    initialise,
    new_node,
    remove_child,
    remove_only_child,
    replace_child,
)
from slipstream_kernels.jit.intrinsics import pointer_i32


class SuffixTree:
    """The tree over staged text. Positions of the text are numbers below 2^31."""

    __slots__ = ("max_depth", "memory")

    def __init__(self, max_depth: int, *, tokens: int = 0, removable: bool = False) -> None:
        self.max_depth = max_depth
        self.memory = TreeMemory(max_depth, tokens=tokens, removable=removable)
        initialise(self.memory.address)

    @property
    def end(self) -> int:
        """Position after the last token that is in the tree."""
        return self.memory["end"]

    def stage(self, position: int, tokens: Sequence[int] | npt.NDArray[np.int32]) -> None:
        """Write text at a position, to be appended later."""
        self.memory.reserve_text(position + len(tokens))
        self.memory.text[position : position + len(tokens)] = tokens

    def begin(self, position: int) -> None:
        """A sequence begins at a position; the one before it must have been terminated."""
        self.memory["first"] = self.memory["end"] = position

    def append(self, count: int) -> None:
        """Take in the next `count` staged tokens."""
        self.memory.reserve_nodes(2 * (count + self.max_depth))
        append_staged(self.memory.address, count)

    def remove(self, position: int, count: int) -> None:
        """Take out suffixes of the oldest sequence, in order. No sequence may be under way."""
        remove_suffixes(self.memory.address, position, count)


@compiled
def append_staged(address: int, count: int) -> None:
    """Enter the next `count` tokens of the text; nodes for them have been reserved."""
    t = tree_at(address)
    text, nodes, edges, leaves = pointer_i32(t.text), pointer_i32(t.nodes), pointer_i32(t.edges), pointer_i32(t.leaves)
    for position in range(t.end, t.end + count):
        token = text[position]
        if token != TERMINATOR:
            edges[position & (RING - 1)] = ROOT
        suffix = t.first
        limit = position + (token != TERMINATOR)
        while suffix < limit and _diverges(t, suffix, position, token):
            suffix += 1
        while suffix < limit:
            slot = suffix & (RING - 1)
            edge = edges[slot]
            depth = position - suffix
            if depth == nodes[edge * FIELDS + DEPTH]:
                nodes[edge * FIELDS + START] = suffix
                edge = child_of(t, edge, token)
                edges[slot] = edge
                count_up(t, edge)
            if depth + 1 == t.max_depth or token == TERMINATOR:
                nodes[edge * FIELDS + START] = suffix
                if t.leaves != 0:
                    leaves[suffix] = edge
                t.first = suffix + 1
            suffix += 1
        t.end = position + 1


@compiled
def _diverges(t: Any, suffix: int, position: int, token: int) -> bool:
    """If no other suffix goes on with `token`, make the leaf of this one, which is then no longer active."""
    text, nodes, edges = pointer_i32(t.text), pointer_i32(t.nodes), pointer_i32(t.edges)
    edge = edges[suffix & (RING - 1)]
    depth = position - suffix
    if depth < nodes[edge * FIELDS + DEPTH]:
        if text[nodes[edge * FIELDS + START] + depth] == token:
            return False
        edge = _split(t, edge, suffix, depth, position)
    elif child_of(t, edge, token) >= 0:
        return False
    nodes[edge * FIELDS + START] = suffix
    leaf = new_node(t, edge, suffix, t.max_depth, token, 1)
    add_child(t, leaf)
    if t.leaves != 0:
        pointer_i32(t.leaves)[suffix] = leaf
    t.first = suffix + 1
    return True


@compiled
def _split(t: Any, lower: int, suffix: int, depth: int, position: int) -> int:
    """Divide an edge at a depth, where active suffix `suffix` stands. Returns the node that ends its upper part."""
    nodes, edges = pointer_i32(t.nodes), pointer_i32(t.edges)
    at = lower * FIELDS
    upper = new_node(t, ROOT, suffix, depth, 0, nodes[at + COUNT])
    replace_child(t, lower, upper)
    stopped = 0
    for active in range(suffix, position):
        if edges[active & (RING - 1)] == lower:
            edges[active & (RING - 1)] = upper
            stopped += 1
    nodes[at + COUNT] -= stopped
    nodes[at + PARENT] = upper
    nodes[at + TOKEN] = pointer_i32(t.text)[nodes[at + START] + depth]
    add_child(t, lower)
    return upper


@compiled
def remove_suffixes(address: int, position: int, count: int) -> None:
    """Take out `count` suffixes from `position` on."""
    t = tree_at(address)
    leaves = pointer_i32(t.leaves)
    for suffix in range(position, position + count):
        _remove(t, leaves[suffix])


@compiled
def _remove(t: Any, leaf: int) -> None:
    nodes = pointer_i32(t.nodes)
    parent = node = nodes[leaf * FIELDS + PARENT]
    gone = nodes[leaf * FIELDS + COUNT] == 1
    if gone:
        remove_child(t, leaf)
    else:
        count_down(t, leaf)
    while node != ROOT:
        count_down(t, node)
        node = nodes[node * FIELDS + PARENT]
    only = nodes[parent * FIELDS + FIRST]
    if gone and parent != ROOT and only == nodes[parent * FIELDS + LAST]:
        remove_only_child(t, only)
        replace_child(t, parent, only)
        free_node(t, parent)
