"""Radix cache of full KV pages, keyed by the tokens they hold."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream.prefix_hash import PrefixHasher, marks_within, prefix_salt
from slipstream_kernels.models.page_pool import PagePool
from verify_service.kv_cache.cache_events import CacheChanges, CacheEvents

Namespace = tuple[str, str]
"""Tenant and adapter: what one of them cached is never seen by another."""

_FEW_ROOTS = 1024


@dataclass(slots=True, eq=False)
class PrefixNode:
    """An edge of the tree: a run of tokens that fills `pages` exactly, below `parent`.

    `locks` counts the leases that end at this node or below it, `used` is the time the last of them ended, `depth` is
    the number of pages above. While the cache is watched, `hashes` are the names of the prefixes that end in the node
    and have one (slipstream.prefix_hash), and `hasher` has covered the path to its end, or is None until it is needed.
    """

    tokens: tuple[int, ...]
    pages: list[int]
    parent: PrefixNode | None
    depth: int = 0
    locks: int = 0
    used: int = 0
    hashes: list[int] = field(default_factory=list)
    hasher: PrefixHasher | None = None
    children: dict[tuple[int, ...], PrefixNode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefixHandle:
    """A cached prefix in use: its pages in order, and the node they end at. They stay until the lease is released."""

    pages: tuple[int, ...]
    node: PrefixNode


class PrefixCache:
    """A path-compressed radix tree over full pages, one root a namespace.

    Each page in the tree is owned by it alone: it holds one reference in the pool. Siblings differ within their
    first page, so that children are found by that page's tokens. Leaves that no lease needs are evicted from their
    ends, the least recently used leaf first.
    """

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self._pool = pool
        self._page_size = page_size
        self._changes: CacheChanges | None = None  # while the cache is watched
        self._roots: dict[Namespace, PrefixNode] = {}
        self._root_limit = _FEW_ROOTS
        self._idle: list[tuple[int, int, PrefixNode]] = []
        self._clock = 0
        self._nodes = 0
        self._held = 0
        self._locked = 0

    @property
    def pages(self) -> int:
        """Pages in the tree."""
        return self._held

    @property
    def evictable(self) -> int:
        """Pages in the tree that no lease needs."""
        return self._held - self._locked

    def match(self, namespace: Namespace, tokens: Sequence[int]) -> int:
        """How many of `tokens`, from the first on, lie in cached full pages."""
        root = self._roots.get(namespace)
        return 0 if root is None else self._descend(root, tuple(tokens))[1]

    def acquire(self, namespace: Namespace, tokens: Sequence[int]) -> PrefixHandle:
        """Lease the longest cached prefix of `tokens`; it may be empty."""
        node, matched = self._descend(self._root(namespace), tuple(tokens), split=True)
        self._lock(node)
        return PrefixHandle(tuple(self._path_pages(node)[: matched // self._page_size]), node)

    def extend(
        self, namespace: Namespace, tokens: Sequence[int], pages: Sequence[int], lease: PrefixHandle
    ) -> PrefixHandle:
        """Hand full pages over to the tree and lease them: the new lease replaces `lease`.

        `pages[i]` holds the i-th page of `tokens`; those of `lease` come first. The caller's own pages now belong
        to the tree. Where the tree holds the same tokens already, the caller's page goes back to the pool and the
        new lease names the tree's.
        """
        size = self._page_size
        run = tuple(tokens[: len(pages) * size])
        node, matched = self._descend(self._root(namespace), run, split=True)
        known = matched // size
        for page in pages[len(lease.pages) : known]:
            self._pool.release(page)
        if known < len(pages):
            child = PrefixNode(run[matched:], list(pages[known:]), node, known)
            node.children[child.tokens[:size]] = child
            self._nodes += 1
            self._held += len(child.pages)
            if self._changes is not None:
                self._changes.add(self._name(child, namespace))
            node = child
        self._lock(node)
        self._unlock(lease.node)
        return PrefixHandle(tuple(self._path_pages(node)), node)

    def release(self, lease: PrefixHandle) -> None:
        """End a lease."""
        self._unlock(lease.node)

    def evict(self, count: int) -> int:
        """Give up to `count` pages back to the pool; returns how many."""
        given = 0
        while given < count and self._idle:
            used, _, node = heapq.heappop(self._idle)
            if not self._is_current(used, node):
                continue
            given += self._trim(node, count - given)
        return given

    def clear(self) -> int:
        """Evict all that no lease needs; returns how many pages."""
        return self.evict(self.evictable)

    def watch(self, *, wanted: bool) -> None:
        """Keep record of what is cached for `take_events`, from all there is on, or do so no longer."""
        self._changes = CacheChanges(whole=True) if wanted else None
        for namespace, root in self._roots.items():
            nodes = [root]
            while nodes:
                node = nodes.pop()
                node.hashes, node.hasher = [], None
                if self._changes is not None and node is not root:
                    self._changes.add(self._name(node, namespace))
                nodes.extend(node.children.values())

    def take_events(self) -> CacheEvents | None:
        """What has changed since the last call, or all there is in the first one after `watch`; None: nothing."""
        return None if self._changes is None else self._changes.take()

    def _name(self, node: PrefixNode, namespace: Namespace) -> list[int]:
        """Name the prefixes that end in a node."""
        assert node.parent is not None
        salt = prefix_salt(*namespace)
        node.hasher = self._hasher(node.parent).copy()
        node.hashes = [each ^ salt for each in node.hasher.extend(node.tokens)]
        return node.hashes

    def _hasher(self, node: PrefixNode) -> PrefixHasher:
        """The hash's state at a node's end, computed from the nearest one above that is known."""
        below: list[PrefixNode] = []
        at: PrefixNode | None = node
        while at is not None and at.hasher is None:
            below.append(at)
            at = at.parent
        hasher = PrefixHasher(self._page_size) if at is None or at.hasher is None else at.hasher
        for each in reversed(below):
            hasher = each.hasher = hasher.copy()
            hasher.extend(each.tokens)
        return hasher

    @staticmethod
    def _names_left(node: PrefixNode, pages: int) -> int:
        """How many of a node's prefixes have a name if it ends after so many pages."""
        return marks_within(node.depth + pages) - marks_within(node.depth)

    def _root(self, namespace: Namespace) -> PrefixNode:
        root = self._roots.get(namespace)
        if root is None:
            if len(self._roots) >= self._root_limit:
                self._roots = {name: node for name, node in self._roots.items() if node.children or node.locks}
                self._root_limit = max(_FEW_ROOTS, 2 * len(self._roots))
            root = self._roots[namespace] = PrefixNode((), [], None)
        return root

    def _descend(self, root: PrefixNode, tokens: tuple[int, ...], *, split: bool = False) -> tuple[PrefixNode, int]:
        """The deepest node within `tokens` and the number of tokens matched, whole pages only.

        A node matched in part is cut in two where `split` is set, so that the match ends at a node.
        """
        size = self._page_size
        node, at = root, 0
        while at + size <= len(tokens):
            child = node.children.get(tokens[at : at + size])
            if child is None:
                break
            common = self._common(child.tokens, tokens, at)
            if common < len(child.tokens):
                return (self._split(child, common) if split else node), at + common
            node, at = child, at + common
        return node, at

    def _common(self, run: tuple[int, ...], tokens: tuple[int, ...], at: int) -> int:
        """Length of the common prefix of `run` and `tokens[at:]`, in whole pages."""
        if tokens[at : at + len(run)] == run:
            return len(run)
        count = next((i for i, (a, b) in enumerate(zip(run, tokens[at:], strict=False)) if a != b), None)
        if count is None:
            count = min(len(run), len(tokens) - at)
        return count - count % self._page_size

    def _split(self, node: PrefixNode, length: int) -> PrefixNode:
        """Cut a node after `length` tokens; returns the new upper half."""
        size = self._page_size
        assert node.parent is not None
        count = length // size
        upper = PrefixNode(node.tokens[:length], node.pages[:count], node.parent, node.depth, node.locks, node.used)
        node.parent.children[upper.tokens[:size]] = upper
        if self._changes is not None:
            named = self._names_left(node, count)
            upper.hashes, node.hashes = node.hashes[:named], node.hashes[named:]
        node.tokens, node.pages, node.depth = node.tokens[length:], node.pages[count:], node.depth + count
        node.parent = upper
        upper.children[node.tokens[:size]] = node
        self._nodes += 1
        return upper

    def _path_pages(self, node: PrefixNode) -> list[int]:
        runs: list[list[int]] = []
        at: PrefixNode | None = node
        while at is not None:
            runs.append(at.pages)
            at = at.parent
        return [page for run in reversed(runs) for page in run]

    def _lock(self, node: PrefixNode) -> None:
        at: PrefixNode | None = node
        while at is not None:
            if at.locks == 0:
                self._locked += len(at.pages)
            at.locks += 1
            at = at.parent

    def _unlock(self, node: PrefixNode) -> None:
        now = self._tick()
        at: PrefixNode | None = node
        while at is not None:
            assert at.locks > 0
            at.locks -= 1
            if at.locks == 0:
                at.used = now
                self._locked -= len(at.pages)
                self._offer(at)
            at = at.parent

    def _is_idle_leaf(self, node: PrefixNode) -> bool:
        return node.locks == 0 and not node.children and bool(node.pages)

    def _is_current(self, used: int, node: PrefixNode) -> bool:
        """Whether an eviction entry made at time `used` still holds."""
        return used == node.used and self._is_idle_leaf(node)

    def _offer(self, node: PrefixNode) -> None:
        """Queue a node for eviction if nothing holds it; entries that have gone stale are dropped when met."""
        if self._is_idle_leaf(node):
            if len(self._idle) > 2 * self._nodes + 64:
                self._idle = [
                    entry for entry in self._idle if entry[0] == entry[2].used and self._is_idle_leaf(entry[2])
                ]
                heapq.heapify(self._idle)
            heapq.heappush(self._idle, (node.used, self._tick(), node))

    def _trim(self, node: PrefixNode, count: int) -> int:
        """Give pages from a leaf's end back to the pool; a leaf left empty makes way for its parent."""
        size = self._page_size
        first = tuple(node.tokens[:size])
        taken = min(count, len(node.pages))
        for _ in range(taken):
            self._pool.release(node.pages.pop())
        if self._changes is not None:
            named = self._names_left(node, len(node.pages))
            self._changes.evict(node.hashes[named:])
            del node.hashes[named:]
            node.hasher = None
        node.tokens = node.tokens[: len(node.pages) * size]
        self._held -= taken
        if node.pages:
            self._offer(node)
        else:
            assert node.parent is not None
            del node.parent.children[first]
            self._nodes -= 1
            self._offer(node.parent)
        return taken

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
