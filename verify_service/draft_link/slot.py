"""The slots of one attachment: which request each holds, at which state, and the newest tree that fits it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream_kernels.token_tree import MAX_ROWS, TokenTree
from verify_service.core.acceptance import match_path
from verify_service.core.draft_source import OutcomeTree
from verify_service.core.request import RequestKey
from verify_service.draft_link.answer_time import Asked
from verify_service.draft_link.draft_stats import DraftStats
from verify_service.draft_link.late_tree_match import LateTreeMatch
from verify_service.draft_link.records import NO_NODE, Offer, ParentNode, Stamp, TreeReply

NEAR_TOKENS = 32
"""A drafter that has answered a state so few tokens ago has caught up: one pass brings it to the newest one."""


@dataclass(slots=True, eq=False)
class Slot:
    """One request's place in one attachment.

    Invariant: `tree`, where there is one, was made for exactly the state (generation, base_length, root_token) and
    keeps within `max_nodes` (root included) and `max_depth`. `ahead` holds at most `max_ahead` trees, all of them for
    states that the step from this state may lead to, within what the proposer offers.
    """

    epoch: int
    index: int
    generation: int = 0
    key: RequestKey | None = None
    base_length: int = 0
    root_token: int = 0
    max_nodes: int = 1
    max_depth: int = 0
    tree: TokenTree | None = None
    given: TokenTree | None = None
    """The tree that the step under way was given."""
    hindsight: LateTreeMatch | None = None
    """Of a tree that came when its step had begun without it."""
    tally: DraftStats = field(default_factory=DraftStats)
    """Of the proposer that drafts for the request."""
    asks: Asked = field(default_factory=Asked)
    fed: bool = False
    """Whether every record since the Open was queued. If not, the drafter is behind until it resumes."""
    announced: bool = False
    """Whether an Open of this request was queued, so that the drafter may hold something for it."""
    caught_up: bool = False
    """Whether waiting makes sense: not while the drafter works through tokens that were there before it."""
    answered: int = 0
    """Tokens that the drafter has shown to know, by answering the state after them."""
    boundaries: tuple[int, ...] = ()
    """Those whose states the drafter wants."""
    needs_states: bool = False
    """Whether it makes no tree while some of them are missing."""
    featured: int = 0
    """The first position whose states it has not been sent; those before it came, or will not."""
    asked: bool = False
    """Whether any tree was wanted, or is going to be, since its request came here."""
    late: bool = False
    """Whether its Open waits for its turn, or for a step that captures these states."""
    refused: bool = False
    """The drafter will make no trees for this request."""
    explained: bool = False
    """Whether the log tells why it refused this request; a drafter may refuse it again after each Resume."""
    max_ahead: int = 0
    waits: bool = True
    """Whether steps wait for its trees."""
    tree_id: int = 0
    """How the drafter calls `tree`."""
    given_id: int = 0
    prepared: bool = False
    """Whether `tree` was made ahead."""
    supplied: bool = False
    """Whether the drafter kept up with the last step: it had a tree, or there are some for its possible ends."""
    origin: ParentNode = NO_NODE
    """How the step that led to the present state ended."""
    ahead: dict[tuple[int, int, ParentNode], TreeReply] = field(default_factory=dict)
    """Trees ahead by base length, root token and parent."""
    handed_over: bool = False
    """Whether the step for one of whose trees ahead is meant has begun, with whichever fits."""
    most_nodes: int = 1
    most_depth: int = 0
    """Of the proposer's trees, whatever the state wants."""

    @property
    def stamp(self) -> Stamp:
        """The state that a tree must be made for."""
        return Stamp(self.epoch, self.index, self.generation, self.base_length, self.root_token)

    @property
    def awaited(self) -> bool:
        """Whether a tree is wanted, may still come, and has not."""
        return self.waits and self.tree is None and self.max_nodes > 1 and self.caught_up and self.drafted_for

    @property
    def drafted_for(self) -> bool:
        """Whether the drafter makes trees for this request when asked, or works towards it."""
        return self.key is not None and self.fed and not self.refused

    @property
    def lacks_states(self) -> bool:
        """Whether the drafter makes no tree, as it has yet to be sent states of tokens before the last one."""
        return self.needs_states and self.drafted_for and self.featured < self.base_length - 1

    @property
    def holds_more(self) -> bool:
        """Whether more trees ahead may come."""
        return self.drafted_for and len(self.ahead) < self.max_ahead

    @property
    def takes_over(self) -> bool:
        """Whether a request that another drafter has until now may go on with this one without missing its trees."""
        near = self.max_nodes <= 1 or (self.answered > 0 and self.base_length - self.answered <= NEAR_TOKENS)
        return self.drafted_for and near

    def open(
        self,
        key: RequestKey,
        tally: DraftStats,
        *,
        caught_up: bool,
        boundaries: tuple[int, ...] = (),
        max_ahead: int = 0,
        waits: bool = True,
        needs_states: bool = False,
    ) -> None:
        """Take a request under a new generation."""
        self.generation += 1
        self.key = key
        self.tally = tally
        self._drop_trees()
        self.asks.clear()
        self.answered = 0
        self.fed = self.refused = self.late = self.asked = False
        self.boundaries = boundaries
        self.needs_states = needs_states
        self.caught_up = caught_up
        self.max_ahead = max_ahead
        self.waits = waits

    def stand_at(self, base_length: int, root_token: int, max_nodes: int, max_depth: int, offer: Offer) -> None:
        """Move to a new state; the budget is cut to what the proposer offers.

        A tree for the old state is dropped, and of those ahead all but the one for the way in which its step ended.
        """
        self.base_length = base_length
        self.root_token = root_token
        self.most_nodes, self.most_depth = min(offer.max_nodes, MAX_ROWS), min(offer.max_depth, MAX_ROWS - 1)
        self.max_nodes = min(max_nodes, offer.max_nodes)
        self.max_depth = min(max_depth, offer.max_depth)
        self.asked |= self.max_nodes > 1
        ahead, self.ahead, self.handed_over = self.ahead, {}, False
        self.supplied = bool(ahead) or self.tree is not None
        self.tree, self.tree_id, self.prepared = None, 0, False
        found = ahead.get((base_length, root_token, self.origin))
        if found is not None:
            self.put(found)

    def fits(self, reply: TreeReply) -> bool:
        """Whether a tree is for the present state, and supposed rightly how the step before ended."""
        return reply.stamp == self.stamp and (
            reply.parent is None or (self.max_ahead > 0 and reply.parent == self.origin)
        )

    def supposes(self, reply: TreeReply) -> bool:
        """Whether a tree supposes an end that the step from the present state may have."""
        parent, base_length = reply.parent, reply.stamp.base_length
        if parent is None or base_length <= self.base_length:
            return False
        if parent.node < 0:
            return base_length == self.base_length + 1
        return parent.tree_id > 0 and parent.tree_id in (self.tree_id, self.given_id)

    def may_hold(self, reply: TreeReply) -> bool:
        """Whether it does, and there is room for it, and time."""
        if self.handed_over or not self.supposes(reply):
            return False
        return len(self.ahead) < self.max_ahead or _key(reply) in self.ahead

    def too_late(self, reply: TreeReply) -> bool:
        """Whether the step that a tree was made for has begun."""
        return reply.stamp.base_length < self.base_length or (self.handed_over and self.supposes(reply))

    def hand_over(self) -> list[OutcomeTree]:
        """The trees ahead, cut to what the present state wants, for a step that begins before its state is known."""
        self.handed_over = True
        prepared: list[OutcomeTree] = []
        paths = {parent: self._path(parent) for _, _, parent in self.ahead}
        for (base_length, token, parent), reply in self.ahead.items():
            path = paths[parent]
            if path is not None and base_length == self.base_length + len(path) + 1:
                prepared.append(OutcomeTree(path, token, self._cut(reply.tree)))
        return prepared

    def begin(self, tree: TokenTree | None) -> None:
        """A step from the present state is under way, with this part of the tree that was prepared for it, or none.

        The drafter, who is told of the tree alone, goes on to name its nodes as if all that the state wants were there.
        """
        if tree is None:
            self.tree, self.tree_id, self.prepared = None, 0, False
        self.give()

    def _path(self, parent: ParentNode) -> tuple[int, ...] | None:
        """Tokens of the path down to a node of the tree under way; None where no step's end is called that."""
        if parent.node < 0:
            return ()
        if self.given is None or parent.tree_id != self.given_id or parent.node >= len(self.given):
            return None
        path = tuple(self.given.token_ids[node] for node in self.given.path(parent.node))
        return path if match_path(self.given, path) == (parent.node, len(path)) else None

    def _cut(self, tree: TokenTree) -> TokenTree:
        if len(tree) >= self.max_nodes or tree.depth > self.max_depth:
            return tree.truncated(max(0, self.max_nodes - 1), self.max_depth)
        return tree

    def limits(self, *, ahead: bool) -> tuple[int, int]:
        """Rows and depth that a tree may have. What the next state wants is not known when one is made ahead."""
        return (self.most_nodes, self.most_depth) if ahead else (self.max_nodes, self.max_depth)

    def hold(self, reply: TreeReply) -> None:
        """Keep a checked tree until the step is over."""
        self.ahead[_key(reply)] = reply

    def put(self, reply: TreeReply) -> None:
        """Take a checked tree for the present state, cut to what that wants."""
        tree, self.tree_id, self.prepared = reply.tree, reply.tree_id, reply.parent is not None
        if self.prepared:
            self.supplied = True
            tree = self._cut(tree)
        self.tree = tree

    def give(self) -> TokenTree | None:
        """The tree for the step that begins, None for a plain row."""
        self.given, self.given_id = self.tree or None, self.tree_id
        return self.given

    def count(self) -> None:
        """A step that wants a tree takes what is there."""
        self.tally.hits += self.tree is not None
        if self.max_ahead and self.drafted_for:
            self.tally.ahead_hits += self.prepared
            self.tally.ahead_misses += not self.prepared

    def settle(self, tokens: Sequence[int]) -> None:
        """The step from the present state has committed these tokens."""
        self.origin = NO_NODE
        if self.given is not None:
            node = self.tally.settle(self.given, tokens)
            if node >= 0:
                self.origin = ParentNode(self.given_id, node)
        elif self.tree and not self.max_ahead:
            self.tally.late += 1
            self.hindsight = self.hindsight or LateTreeMatch(self.tree)
        if self.hindsight is not None and self.hindsight.follow(tokens):
            self.tally.judge(self.hindsight.right)
            self.hindsight = None
        self.given, self.given_id = None, 0

    def ask(self, now: float) -> None:
        """The drafter is told of the present state, and can make a tree for it, if one is wanted."""
        if self.max_nodes > 1 and not self.lacks_states:
            self.asks.note(self.base_length, now)

    def answer(self, reply: TreeReply, now: float) -> None:
        """A tree has come that was asked for, for the present state or an earlier one."""
        if reply.parent is None and (seconds := self.asks.answered(reply.stamp.base_length, now)) is not None:
            self.tally.answers.add(seconds, late=self.too_late(reply))

    def look_back(self, tree: TokenTree, tokens: Sequence[int]) -> None:
        """A checked tree has come for a state that `tokens` have followed by now: see what it would have brought."""
        if self.hindsight is None and not self.max_ahead:
            hindsight = LateTreeMatch(tree)
            if hindsight.follow(tokens):
                self.tally.judge(hindsight.right)
            else:
                self.hindsight = hindsight

    def close(self) -> None:
        """Let the request go."""
        self.key = None
        self._drop_trees()
        self.fed = self.announced = self.late = self.explained = False

    def _drop_trees(self) -> None:
        self.tree = self.given = None
        self.tree_id = self.given_id = 0
        self.hindsight = None
        self.prepared = self.supplied = self.handed_over = False
        self.origin = NO_NODE
        self.ahead = {}


def _key(reply: TreeReply) -> tuple[int, int, ParentNode]:
    assert reply.parent is not None
    return reply.stamp.base_length, reply.stamp.root_token, reply.parent


class SlotTable:
    """Slots 0 to `size` - 1; the lowest free one is taken first.

    `max_ahead` and `waits` are those of requests whose proposer drafts in the attachment's mode.
    """

    __slots__ = ("_free", "_slots", "max_ahead", "size", "waits")

    def __init__(self, epoch: int, size: int, *, max_ahead: int = 0, waits: bool = True) -> None:
        self.size = size
        self.max_ahead = max_ahead
        self.waits = waits
        self._slots = [Slot(epoch, index) for index in range(size)]
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
        fits = slot.key is not None and (stamp.epoch, stamp.generation) == (slot.epoch, slot.generation)
        return slot if fits else None

    def taken(self) -> list[Slot]:
        """Slots that hold a request, by index."""
        return [slot for slot in self._slots if slot.key is not None]
