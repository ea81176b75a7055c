"""Nodes of a suffix tree: allocation, the hash table of children, and siblings sorted by count.

*Children* are found by (parent, first token) in one table per tree. It is a linear hash table (W. Litwin, VLDB 1980):
it grows by one bucket at a time, never by rehashing all.

*Siblings* form a list, most frequent first. Neighbours of equal count form a group that knows its ends, so that a count
changes by one in constant time: the node leaves its group at one end and joins or founds the next. Of equal counts the
most recently reached comes first. Children of the root are not listed: nobody asks which is the most frequent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from draft_service.proposers.jit import compiled
from draft_service.proposers.suffix.memory import (
    CHAIN,
    COUNT,
    DEPTH,
    FIELDS,
    FIRST,
    FIRST_BUCKETS,
    GROUP,
    LAST,
    NEXT,
    PARENT,
    PREV,
    START,
    TOKEN,
    tree_at,
)
from slipstream_kernels.jit.intrinsics import pointer_i32

ROOT = 0


@compiled
def initialise(address: int) -> None:
    """Make the root and the first buckets."""
    t = tree_at(address)
    heads = pointer_i32(t.heads)
    for bucket in range(FIRST_BUCKETS):
        heads[bucket] = -1
    t.buckets = t.half = FIRST_BUCKETS
    t.node_free = t.group_free = -1
    new_node(t, -1, 0, 0, 0, 0)


@compiled
def new_node(t: Any, parent: int, start: int, depth: int, token: int, count: int) -> int:
    """A node that is in no list and no bucket."""
    nodes = pointer_i32(t.nodes)
    node: int = t.node_free
    if node >= 0:
        t.node_free = nodes[node * FIELDS + CHAIN]
    else:
        node = t.node_top
        t.node_top = node + 1
    at = node * FIELDS
    nodes[at + PARENT], nodes[at + START], nodes[at + DEPTH] = parent, start, depth
    nodes[at + TOKEN], nodes[at + COUNT] = token, count
    nodes[at + CHAIN] = nodes[at + GROUP] = nodes[at + PREV] = nodes[at + NEXT] = -1
    nodes[at + FIRST] = nodes[at + LAST] = -1
    return node


@compiled
def free_node(t: Any, node: int) -> None:
    """Give a node back that is in no list and no bucket."""
    pointer_i32(t.nodes)[node * FIELDS + CHAIN] = t.node_free
    t.node_free = node


@compiled
def _hash(parent: int, token: int) -> Any:
    key = (np.uint64(parent) << np.uint64(32)) ^ np.uint64(np.uint32(token))
    mixed = key * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return np.int64(mixed >> np.uint64(33))


@compiled
def _bucket(t: Any, parent: int, token: int) -> int:
    mixed = _hash(parent, token)
    bucket: int = mixed & (2 * t.half - 1)
    if bucket >= t.buckets:
        bucket -= t.half
    return bucket


@compiled
def child_of(t: Any, parent: int, token: int) -> int:
    """The child of `parent` whose edge begins with `token`, -1 if there is none."""
    nodes = pointer_i32(t.nodes)
    node: int = pointer_i32(t.heads)[_bucket(t, parent, token)]
    while node >= 0:
        at = node * FIELDS
        if nodes[at + PARENT] == parent and nodes[at + TOKEN] == token:
            return node
        node = nodes[at + CHAIN]
    return node


@compiled
def enter(t: Any, node: int) -> None:
    """Put a node into the bucket of its parent and token."""
    nodes, heads = pointer_i32(t.nodes), pointer_i32(t.heads)
    t.live += 1
    if t.live > t.buckets:
        _split_bucket(t)
    at = node * FIELDS
    bucket = _bucket(t, nodes[at + PARENT], nodes[at + TOKEN])
    nodes[at + CHAIN] = heads[bucket]
    heads[bucket] = node


@compiled
def withdraw(t: Any, node: int) -> None:
    """Take a node out of its bucket."""
    nodes, heads = pointer_i32(t.nodes), pointer_i32(t.heads)
    t.live -= 1
    at = node * FIELDS
    bucket = _bucket(t, nodes[at + PARENT], nodes[at + TOKEN])
    other = heads[bucket]
    if other == node:
        heads[bucket] = nodes[at + CHAIN]
        return
    while nodes[other * FIELDS + CHAIN] != node:
        other = nodes[other * FIELDS + CHAIN]
    nodes[other * FIELDS + CHAIN] = nodes[at + CHAIN]


@compiled
def _split_bucket(t: Any) -> None:
    nodes, heads = pointer_i32(t.nodes), pointer_i32(t.heads)
    added = t.buckets
    node = heads[added - t.half]
    heads[added - t.half] = heads[added] = -1
    t.buckets = added + 1
    while node >= 0:
        at = node * FIELDS
        following = nodes[at + CHAIN]
        bucket = _hash(nodes[at + PARENT], nodes[at + TOKEN]) & (2 * t.half - 1)
        nodes[at + CHAIN] = heads[bucket]
        heads[bucket] = node
        node = following
    if t.buckets == 2 * t.half:
        t.half = t.buckets


@compiled
def _new_group(t: Any, node: int) -> None:
    groups = pointer_i32(t.groups)
    group = t.group_free
    if group >= 0:
        t.group_free = groups[2 * group]
    else:
        group = t.group_top
        t.group_top = group + 1
    groups[2 * group] = groups[2 * group + 1] = node
    pointer_i32(t.nodes)[node * FIELDS + GROUP] = group


@compiled
def _free_group(t: Any, group: int) -> None:
    pointer_i32(t.groups)[2 * group] = t.group_free
    t.group_free = group


@compiled
def remove_only_child(t: Any, node: int) -> None:
    """Take a child without siblings out of its bucket and list. It keeps its row."""
    withdraw(t, node)
    _free_group(t, pointer_i32(t.nodes)[node * FIELDS + GROUP])


@compiled
def _leave_group(t: Any, node: int) -> None:
    nodes, groups = pointer_i32(t.nodes), pointer_i32(t.groups)
    group = nodes[node * FIELDS + GROUP]
    head, tail = groups[2 * group], groups[2 * group + 1]
    if head == tail:
        _free_group(t, group)
    elif head == node:
        groups[2 * group] = nodes[node * FIELDS + NEXT]
    elif tail == node:
        groups[2 * group + 1] = nodes[node * FIELDS + PREV]


@compiled
def _unlink(t: Any, node: int) -> None:
    nodes = pointer_i32(t.nodes)
    at = node * FIELDS
    before, after = nodes[at + PREV], nodes[at + NEXT]
    above = nodes[at + PARENT] * FIELDS
    nodes[before * FIELDS + NEXT if before >= 0 else above + FIRST] = after
    nodes[after * FIELDS + PREV if after >= 0 else above + LAST] = before


@compiled
def _link_before(t: Any, node: int, after: int) -> None:
    """Put `node` before its sibling `after`, at the end of the list if that is -1."""
    nodes = pointer_i32(t.nodes)
    at = node * FIELDS
    above = nodes[at + PARENT] * FIELDS
    end = after * FIELDS + PREV if after >= 0 else above + LAST
    before = nodes[end]
    nodes[at + PREV], nodes[at + NEXT] = before, after
    nodes[end] = node
    nodes[before * FIELDS + NEXT if before >= 0 else above + FIRST] = node


@compiled
def add_child(t: Any, node: int) -> None:
    """List a child that is no more frequent than any sibling, and put it into its bucket."""
    enter(t, node)
    nodes = pointer_i32(t.nodes)
    at = node * FIELDS
    if nodes[at + PARENT] == ROOT:
        return
    last = nodes[nodes[at + PARENT] * FIELDS + LAST]
    if last >= 0 and nodes[last * FIELDS + COUNT] == nodes[at + COUNT]:
        group = nodes[last * FIELDS + GROUP]
        _link_before(t, node, pointer_i32(t.groups)[2 * group])
        nodes[at + GROUP] = group
        pointer_i32(t.groups)[2 * group] = node
    else:
        _link_before(t, node, -1)
        _new_group(t, node)


@compiled
def remove_child(t: Any, node: int) -> None:
    """Undo `add_child` and free the node."""
    withdraw(t, node)
    if pointer_i32(t.nodes)[node * FIELDS + PARENT] != ROOT:
        _leave_group(t, node)
        _unlink(t, node)
    free_node(t, node)


@compiled
def replace_child(t: Any, old: int, new: int) -> None:
    """Give `new` the place of `old` among its siblings and in its bucket; both have the same count."""
    nodes, groups = pointer_i32(t.nodes), pointer_i32(t.groups)
    withdraw(t, old)
    was, at = old * FIELDS, new * FIELDS
    nodes[at + PARENT], nodes[at + TOKEN] = nodes[was + PARENT], nodes[was + TOKEN]
    enter(t, new)
    if nodes[at + PARENT] == ROOT:
        nodes[at + PREV] = nodes[at + NEXT] = nodes[at + GROUP] = -1
        return
    before, after, group = nodes[was + PREV], nodes[was + NEXT], nodes[was + GROUP]
    nodes[at + PREV], nodes[at + NEXT], nodes[at + GROUP] = before, after, group
    above = nodes[at + PARENT] * FIELDS
    nodes[before * FIELDS + NEXT if before >= 0 else above + FIRST] = new
    nodes[after * FIELDS + PREV if after >= 0 else above + LAST] = new
    for end in range(2 * group, 2 * group + 2):
        if groups[end] == old:
            groups[end] = new


@compiled
def count_up(t: Any, node: int) -> None:
    """One more suffix passes this edge."""
    nodes, groups = pointer_i32(t.nodes), pointer_i32(t.groups)
    at = node * FIELDS
    count = nodes[at + COUNT] + 1
    nodes[at + COUNT] = count
    if nodes[at + PARENT] == ROOT:
        return
    group = nodes[at + GROUP]
    head, tail = groups[2 * group], groups[2 * group + 1]
    before = nodes[head * FIELDS + PREV]
    joins = before >= 0 and nodes[before * FIELDS + COUNT] == count
    if not joins and head == tail:
        return
    _leave_group(t, node)
    joined = nodes[before * FIELDS + GROUP] if joins else -1
    target = groups[2 * joined] if joins else head
    if target != node:
        _unlink(t, node)
        _link_before(t, node, target)
    if joins:
        groups[2 * joined] = node
        nodes[at + GROUP] = joined
    else:
        _new_group(t, node)


@compiled
def count_down(t: Any, node: int) -> None:
    """One suffix fewer passes this edge; others still do."""
    nodes, groups = pointer_i32(t.nodes), pointer_i32(t.groups)
    at = node * FIELDS
    count = nodes[at + COUNT] - 1
    nodes[at + COUNT] = count
    if nodes[at + PARENT] == ROOT:
        return
    group = nodes[at + GROUP]
    head, tail = groups[2 * group], groups[2 * group + 1]
    after = nodes[tail * FIELDS + NEXT]
    joins = after >= 0 and nodes[after * FIELDS + COUNT] == count
    if not joins and head == tail:
        return
    _leave_group(t, node)
    if tail != node:
        _unlink(t, node)
        _link_before(t, node, after)
    if joins:
        joined = nodes[after * FIELDS + GROUP]
        groups[2 * joined] = node
        nodes[at + GROUP] = joined
    else:
        _new_group(t, node)
