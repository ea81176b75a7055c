"""The slots of one attachment: which request each holds, at which state, and the newest tree that fits it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream_kernels.device_tree import known
from slipstream_kernels.draft_protocol.records import ParentNode, Stamp, TreeReply
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from verify_service.core.acceptance import VerifiedTree, match_path
from verify_service.core.draft_source import OutcomeTree
from verify_service.core.request import RequestKey
from verify_service.draft_link.records import NO_NODE, Offer
from verify_service.draft_link.slots.answer_time import AskTimes
from verify_service.draft_link.slots.draft_stats import DraftStats, LateTreeMatch
from verify_service.draft_link.slots.speculation_cache import SpeculationCache
from verify_service.draft_link.slots.state_feed import StateFeed

NEAR_TOKENS = 32
"""A drafter that has answered a state so few tokens ago has caught up: one pass brings it to the newest one."""


@dataclass(slots=True, eq=False)
class DrafterSession:
    """What a drafter was sent of the request in a slot, and what it has answered.

    tokens  |-- drafter answered --|-- sent, unanswered --|
            0                 acked_length           base_length (root included)
    """

    opened: bool = False
    """Whether an Open of this request was queued, so that the drafter may hold something for it."""
    open_deferred: bool = False
    """Whether the Open waits for the rate limiter, or for a step that captures the feed's boundaries."""
    in_sync: bool = False
    """Whether every record since the Open was queued. If not, the drafter gets none until it resumes."""
    caught_up: bool = False
    """Whether waiting makes sense: not while the drafter works through tokens older than its Open."""
    acked_length: int = 0
    """Base length of the latest state that the drafter has answered."""
    ever_requested: bool = False
    """Whether a tree was wanted, or states to catch up with, since the request took this slot."""
    nacked: bool = False
    """Whether the drafter makes no trees for this request."""
    nack_logged: bool = False
    """Whether the log has the reason of its Nack; a drafter may send one again after each Resume."""
    asks: AskTimes = field(default_factory=AskTimes)

    def begin(self, *, caught_up: bool) -> None:
        """Start over, with an Open that is to be queued."""
        self.in_sync = self.nacked = self.open_deferred = self.ever_requested = False
        self.caught_up = caught_up
        self.acked_length = 0
        self.asks.clear()

    def end(self) -> None:
        """Let the request go."""
        self.in_sync = self.opened = self.open_deferred = self.nack_logged = False


@dataclass(slots=True, eq=False)
class Slot:
    """One request's slot in one attachment: its state, the tree for it and the tree in flight.

    A slot's life; `opened` and `in_sync` stand for records queued to the drafter:

        free --take--> open() --Open queued--> opened, in_sync --Nack--> nacked: no trees until the next Open
                         |  ^                     |
           open_deferred |  |                     +--queue full--> Gap: not in_sync --Resume--> open() again
        (waits its turn, |  |
         or for states)  +--+                     close(): free, under the next open() a new generation

    One step after another; a drafter in lockstep fills `tree`, one that drafts ahead `cache`:

             +-------------------------- advance_to(base_length, root_token) <-----------------------------+
             v                            tree = cache[state, last_outcome]: from_cache                    |
        set_tree(reply)   --> tree --> put_in_flight() --> in_flight_tree --> end_step(tokens) --> last_outcome
        cache.put(reply)  --> cache --> take_outcome_trees(): cache.taken --> begin_step(tree)

    Invariants:
    - `tree` is made for exactly the state that `stamp` names: generation, base length and root token.
    - `tree` keeps within `max_nodes` (root included) and `max_depth`.
    - `cache` holds trees for states that the step from this state may lead to.
    """

    index: int
    stamp: Stamp
    """The state that a tree must be made for."""
    key: RequestKey | None = None
    max_nodes: int = 1
    max_depth: int = 0
    tree: TokenTree | None = None
    tree_id: int = 0
    """The drafter's number of `tree`."""
    from_cache: bool = False
    """Whether `tree` came from the cache, or after its time in it."""
    in_flight_tree: TokenTree | None = None
    """The tree that the step in flight verifies."""
    in_flight_tree_id: int = 0
    late_match: LateTreeMatch | None = None
    """Of a tree that came after its step had begun without it."""
    waits: bool = True
    """Whether steps wait for its trees."""
    handed_length: int = 0
    """Base length of the latest state whose tree a step took from the device, before any reply."""
    promised: TokenTree | None = None
    """What a proposer of this process drafts on the device for the next state, whichever that is; checked."""
    passed_over: bool = False
    """Whether the drafter made none behind the latest pass; until a reply brings one it is not asked for any there."""
    stats: DraftStats = field(default_factory=DraftStats)
    """Statistics of the proposer that drafts for the request."""
    session: DrafterSession = field(default_factory=DrafterSession)
    feed: StateFeed = field(default_factory=StateFeed)
    cache: SpeculationCache = field(default_factory=SpeculationCache)

    @property
    def awaited(self) -> bool:
        """Whether a tree is wanted, may still come, and has not."""
        return self.waits and self.tree is None and self.max_nodes > 1 and self.session.caught_up and self.drafted_for

    @property
    def has_handed_tree(self) -> bool:
        """Whether the step under way has the tree for the present state from the device."""
        return self.handed_length == self.stamp.base_length

    @property
    def drafted_for(self) -> bool:
        """Whether the drafter makes trees for this request when asked, or works towards it."""
        return self.key is not None and self.session.in_sync and not self.session.nacked

    @property
    def lacks_states(self) -> bool:
        """Whether the drafter makes no tree, as it has yet to be sent states of tokens before the last one."""
        return self.feed.lacks(self.stamp.base_length) and self.drafted_for

    @property
    def cache_has_room(self) -> bool:
        """Whether more trees may be cached."""
        return self.drafted_for and self.cache.has_room

    @property
    def can_take_over(self) -> bool:
        """Whether a request that another drafter has until now may go on with this one without missing its trees."""
        acked = self.session.acked_length
        near = self.max_nodes <= 1 or (acked > 0 and self.stamp.base_length - acked <= NEAR_TOKENS)
        return self.drafted_for and near

    def open(
        self,
        key: RequestKey,
        stats: DraftStats,
        *,
        caught_up: bool,
        boundaries: tuple[int, ...] = (),
        max_ahead: int = 0,
        waits: bool = True,
        needs_states: bool = False,
    ) -> None:
        """Take a request under a new generation."""
        self.stamp = self.stamp._replace(generation=self.stamp.generation + 1)
        self.key = key
        self.stats = stats
        self._drop_trees()
        self.session.begin(caught_up=caught_up)
        self.feed = StateFeed(boundaries, needs_states)
        self.cache.capacity = max_ahead
        self.waits = waits
        self.handed_length, self.passed_over, self.promised = 0, False, None

    def advance_to(self, base_length: int, root_token: int, max_nodes: int, max_depth: int, offer: Offer) -> None:
        """Move to a new state; the budget is cut to what the proposer offers.

        Drop the tree of the old state, and of the cached ones all but the tree for the last outcome.
        """
        self.stamp = Stamp(self.stamp.epoch, self.stamp.slot, self.stamp.generation, base_length, root_token)
        most_nodes, most_depth, cache = offer.max_nodes, offer.max_depth, self.cache
        cache.max_nodes, cache.max_depth = min(most_nodes, MAX_ROWS), min(most_depth, MAX_ROWS - 1)
        self.max_nodes, self.max_depth = min(max_nodes, most_nodes), min(max_depth, most_depth)
        if self.max_nodes > 1:
            self.session.ever_requested = True
        found = cache.advance(base_length, root_token, had_tree=self.tree is not None)
        self.tree, self.tree_id, self.from_cache = None, 0, False
        if found is not None:
            self.set_tree(found)

    def fits(self, reply: TreeReply) -> bool:
        """Whether a tree is for the present state, and its parent, if any, is the last outcome."""
        return reply.stamp == self.stamp and (
            reply.parent is None or (self.cache.capacity > 0 and reply.parent == self.cache.last_outcome)
        )

    def supposes(self, reply: TreeReply) -> bool:
        """Whether a tree is for an outcome that the step from the present state may have."""
        parent, base_length = reply.parent, reply.stamp.base_length
        if parent is None or base_length <= self.stamp.base_length:
            return False
        if parent.node < 0:
            return base_length == self.stamp.base_length + 1
        return parent.tree_id > 0 and parent.tree_id in (self.tree_id, self.in_flight_tree_id)

    def may_cache(self, reply: TreeReply) -> bool:
        """Whether a tree is for such an outcome, the cache has room for it, and the next step was not launched yet."""
        return self.supposes(reply) and self.cache.accepts(reply)

    def too_late(self, reply: TreeReply) -> bool:
        """Whether the step that a tree was made for has begun."""
        return reply.stamp.base_length < self.stamp.base_length or (self.cache.taken and self.supposes(reply))

    def take_outcome_trees(self) -> list[OutcomeTree]:
        """Return the cached trees, cut to the present budget, for a step that is launched before its state is known."""
        trees: list[OutcomeTree] = []
        cached = self.cache.take()
        paths = {parent: self._path(parent) for _, _, parent in cached}
        for (base_length, token, parent), reply in cached.items():
            path = paths[parent]
            if path is not None and base_length == self.stamp.base_length + len(path) + 1:
                trees.append(OutcomeTree(path, token, self._cut(reply.tree)))
        return trees

    def begin_step(self, tree: TokenTree | None) -> None:
        """Note that a step from the present state is in flight with a part of the cached tree, or plainly for None.

        The drafter knows the whole tree and goes on to name nodes of it, so the whole one counts as in flight.
        """
        if tree is None:
            self.tree, self.tree_id, self.from_cache = None, 0, False
        self.put_in_flight()

    def _path(self, parent: ParentNode) -> tuple[int, ...] | None:
        """Return the tokens from the root to a node of the tree in flight; None for a parent that is no outcome."""
        if parent.node < 0:
            return ()
        if (
            self.in_flight_tree is None
            or parent.tree_id != self.in_flight_tree_id
            or parent.node >= len(self.in_flight_tree)
        ):
            return None
        path = tuple(self.in_flight_tree.token_ids[node] for node in self.in_flight_tree.path(parent.node))
        return path if match_path(self.in_flight_tree, path) == (parent.node, len(path)) else None

    def _cut(self, tree: TokenTree) -> TokenTree:
        if len(tree) >= self.max_nodes or tree.depth > self.max_depth:
            return tree.truncated(max(0, self.max_nodes - 1), self.max_depth)
        return tree

    def limits(self, *, ahead: bool) -> tuple[int, int]:
        """Return max_nodes and max_depth of a tree. Drafting ahead, the next state's own budget is not known."""
        return (self.cache.max_nodes, self.cache.max_depth) if ahead else (self.max_nodes, self.max_depth)

    def set_tree(self, reply: TreeReply) -> None:
        """Take a checked tree for the present state, cut to its budget."""
        tree, self.tree_id, self.from_cache = reply.tree, reply.tree_id, reply.parent is not None
        if self.from_cache:
            self.cache.kept_up = True
            tree = self._cut(tree)
        self.tree = tree
        self.passed_over &= not tree

    def take_handed(self, tree: TokenTree) -> None:
        """Take a checked tree for the present state that the step under way has from the device."""
        self.stats.handed += 1
        self.tree, self.tree_id, self.from_cache = tree, 0, False
        self.handed_length = self.session.acked_length = self.stamp.base_length
        self.session.caught_up = True

    def put_in_flight(self) -> TokenTree | None:
        """Return the tree that the step beginning now verifies, None for a plain row."""
        self.in_flight_tree, self.in_flight_tree_id = self.tree or None, self.tree_id
        return self.in_flight_tree

    def count_hits(self) -> None:
        """Count whether a step that wants a tree has one."""
        self.stats.hits += self.tree is not None
        if self.cache.capacity and self.drafted_for:
            self.stats.ahead_hits += self.from_cache
            self.stats.ahead_misses += not self.from_cache

    def end_step(self, tokens: Sequence[int], verified: Sequence[VerifiedTree] = ()) -> None:
        """Take in the tokens that the step from the present state has committed, and the trees of it verified."""
        self.cache.last_outcome = NO_NODE
        tree = known(self.in_flight_tree)
        if tree is not None:
            self.stats.count(verified)
            node, levels = match_path(tree, tokens[:-1])  # of the whole tree, whose nodes the drafter names
            self.stats.observe(levels)
            if node >= 0 and self.cache.capacity:
                self.cache.last_outcome = ParentNode(self.in_flight_tree_id, node)
        elif self.tree and not self.cache.capacity:
            self.stats.late += 1
            self.late_match = self.late_match or LateTreeMatch(self.tree)
        if self.late_match is not None and self.late_match.advance(tokens):
            self.stats.observe(self.late_match.matched_depth)
            self.late_match = None
        self.in_flight_tree, self.in_flight_tree_id = None, 0

    def count_verified(self, verified: Sequence[VerifiedTree]) -> None:
        """Count what the request's last steps verified, if that was a tree of this drafter."""
        if self.in_flight_tree is not None:
            self.stats.count(verified)

    def ask(self, now: float) -> None:
        """Note when the drafter was sent the present state, if it can make a tree for it and one is wanted."""
        if self.max_nodes > 1 and not self.lacks_states:
            self.session.asks.note(self.stamp.base_length, now)

    def answer(self, reply: TreeReply, now: float) -> None:
        """Measure how long a tree took that was asked for, for the present state or an earlier one."""
        if reply.parent is None and (seconds := self.session.asks.answered(reply.stamp.base_length, now)) is not None:
            self.stats.answers.add(seconds, late=self.too_late(reply))

    def match_late_tree(self, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Match a checked tree that came too late with the `tokens` committed since its state."""
        if self.late_match is None and not self.cache.capacity:
            match = LateTreeMatch(tree)
            if match.advance(tokens):
                self.stats.observe(match.matched_depth)
            else:
                self.late_match = match

    def close(self) -> None:
        """Let the request go."""
        self.key = None
        self._drop_trees()
        self.session.end()

    def _drop_trees(self) -> None:
        self.tree = self.in_flight_tree = None
        self.tree_id = self.in_flight_tree_id = 0
        self.late_match = None
        self.from_cache = False
        self.cache.clear()


class SlotTable:
    """Slots 0 to `size` - 1; the lowest free one is taken first.

    `max_ahead` and `waits` are those of requests whose proposer drafts in the attachment's mode.
    """

    __slots__ = ("_free", "_slots", "max_ahead", "size", "waits")

    def __init__(self, epoch: int, size: int, *, max_ahead: int = 0, waits: bool = True) -> None:
        self.size = size
        self.max_ahead = max_ahead
        self.waits = waits
        self._slots = [Slot(index, Stamp(epoch, index, 0, 0, 0)) for index in range(size)]
        self._free = list(range(size))

    @property
    def busy(self) -> bool:
        """Whether any slot holds a request. For any thread."""
        return self.taken_count > 0

    @property
    def taken_count(self) -> int:
        """How many slots hold a request."""
        return self.size - len(self._free)

    def take(self) -> Slot | None:
        """A free slot, or None if all are taken."""
        return self._slots[heapq.heappop(self._free)] if self._free else None

    def release(self, slot: Slot) -> None:
        """Close a slot and make it free."""
        slot.close()
        heapq.heappush(self._free, slot.index)

    def matching(self, stamp: Stamp) -> Slot | None:
        """The slot whose current generation the stamp names, whatever the state; None for a stale stamp."""
        if not 0 <= stamp.slot < self.size:
            return None
        slot = self._slots[stamp.slot]
        own = slot.stamp
        fits = slot.key is not None and stamp.generation == own.generation and stamp.epoch == own.epoch
        return slot if fits else None

    def taken(self) -> list[Slot]:
        """Slots that hold a request, by index."""
        return [slot for slot in self._slots if slot.key is not None]
