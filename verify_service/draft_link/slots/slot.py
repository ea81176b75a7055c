"""The slots of one attachment: which request each holds, at which state, and the newest tree that fits it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream_kernels.device_tree import known
from slipstream_kernels.draft_protocol.records import Stamp, TreeReply
from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from verify_service.core.acceptance import VerifiedTree, match_path
from verify_service.core.request import RequestKey
from verify_service.draft_link.records import Offer
from verify_service.draft_link.slots.answer_time import AskTimes
from verify_service.draft_link.slots.draft_stats import DraftStats, LateTreeMatch
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

    One step after another:

             +------------ advance_to(base_length, root_token) <------------+
             v                                                              |
        set_tree(reply) --> tree --> put_in_flight() --> in_flight_tree --> end_step(tokens)

    Invariants:
    - `tree` is made for exactly the state that `stamp` names: generation, base length and root token.
    - `tree` keeps within `max_nodes` (root included) and `max_depth`.
    """

    index: int
    stamp: Stamp
    """The state that a tree must be made for."""
    key: RequestKey | None = None
    max_nodes: int = 1
    max_depth: int = 0
    largest: tuple[int, int] = (1, 0)
    """`max_nodes` and `max_depth` of any tree of the request's proposer, whatever the state's budget."""
    tree: TokenTree | None = None
    in_flight_tree: TokenTree | None = None
    """The tree that the step in flight verifies."""
    late_match: LateTreeMatch | None = None
    """Of a tree that came after its step had begun without it."""
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

    @property
    def awaited(self) -> bool:
        """Whether a tree is wanted, may still come, and has not."""
        return self.tree is None and self.max_nodes > 1 and self.session.caught_up and self.drafted_for

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
        needs_states: bool = False,
    ) -> None:
        """Take a request under a new generation."""
        self.stamp = self.stamp._replace(generation=self.stamp.generation + 1)
        self.key = key
        self.stats = stats
        self._drop_trees()
        self.session.begin(caught_up=caught_up)
        self.feed = StateFeed(boundaries, needs_states)
        self.handed_length, self.passed_over, self.promised = 0, False, None

    def advance_to(self, base_length: int, root_token: int, max_nodes: int, max_depth: int, offer: Offer) -> None:
        """Move to a new state, and drop the tree of the old one; the budget is cut to what the proposer offers."""
        self.stamp = Stamp(self.stamp.epoch, self.stamp.slot, self.stamp.generation, base_length, root_token)
        most_nodes, most_depth = offer.max_nodes, offer.max_depth
        self.largest = min(most_nodes, MAX_ROWS), min(most_depth, MAX_ROWS - 1)
        self.max_nodes, self.max_depth = min(max_nodes, most_nodes), min(max_depth, most_depth)
        if self.max_nodes > 1:
            self.session.ever_requested = True
        self.tree = None

    def too_late(self, reply: TreeReply) -> bool:
        """Whether the step that a tree was made for has begun."""
        return reply.stamp.base_length < self.stamp.base_length

    def set_tree(self, reply: TreeReply) -> None:
        """Take a checked tree for the present state."""
        self.tree = reply.tree
        self.passed_over &= not reply.tree

    def take_handed(self, tree: TokenTree) -> None:
        """Take a checked tree for the present state that the step under way has from the device."""
        self.stats.handed += 1
        self.tree = tree
        self.handed_length = self.session.acked_length = self.stamp.base_length
        self.session.caught_up = True

    def put_in_flight(self) -> TokenTree | None:
        """Return the tree that the step beginning now verifies, None for a plain row."""
        self.in_flight_tree = self.tree or None
        return self.in_flight_tree

    def count_hits(self) -> None:
        """Count whether a step that wants a tree has one."""
        self.stats.hits += self.tree is not None

    def end_step(self, tokens: Sequence[int], verified: Sequence[VerifiedTree] = ()) -> None:
        """Take in the tokens that the step from the present state has committed, and the trees of it verified."""
        tree = known(self.in_flight_tree)
        if tree is not None:
            self.stats.count(verified)
            self.stats.observe(match_path(tree, tokens[:-1])[1])  # of the whole tree, before it was cut
        elif self.tree:
            self.stats.late += 1
            self.late_match = self.late_match or LateTreeMatch(self.tree)
        if self.late_match is not None and self.late_match.advance(tokens):
            self.stats.observe(self.late_match.matched_depth)
            self.late_match = None
        self.in_flight_tree = None

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
        if (seconds := self.session.asks.answered(reply.stamp.base_length, now)) is not None:
            self.stats.answers.add(seconds, late=self.too_late(reply))

    def match_late_tree(self, tree: TokenTree, tokens: Sequence[int]) -> None:
        """Match a checked tree that came too late with the `tokens` committed since its state."""
        if self.late_match is None:
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
        self.late_match = None


class SlotTable:
    """Slots 0 to `size` - 1; the lowest free one is taken first."""

    __slots__ = ("_free", "_slots", "size")

    def __init__(self, epoch: int, size: int) -> None:
        self.size = size
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
