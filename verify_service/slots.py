"""The slots of one attachment: which request each holds, at which state, and the newest tree that fits it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from slipstream_kernels.token_tree import TokenTree
from verify_service.draft_records import Offer, Stamp
from verify_service.request import RequestKey
from verify_service.tally import Tally

NEAR_TOKENS = 32
"""A drafter that has answered a state so few tokens ago has caught up: one pass brings it to the newest one."""


@dataclass(slots=True, eq=False)
class Slot:
    """One request's place in one attachment.

    Invariant: `tree`, where there is one, was made for exactly the state (generation, base_length, root_token) and
    keeps within `max_nodes` (root included) and `max_depth`.
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
    tally: Tally = field(default_factory=Tally)
    """Of the proposer that drafts for the request."""
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
    featured: int = 0
    """The first position whose states it has not been sent; those before it came, or will not."""
    late: bool = False
    """Whether its Open waits for its turn, or for a step that captures these states."""
    refused: bool = False
    """The drafter will make no trees for this request."""
    explained: bool = False
    """Whether the log tells why it refused this request; a drafter may refuse it again after each Resume."""

    @property
    def stamp(self) -> Stamp:
        """The state that a tree must be made for."""
        return Stamp(self.epoch, self.index, self.generation, self.base_length, self.root_token)

    @property
    def awaited(self) -> bool:
        """Whether a tree is wanted, may still come, and has not."""
        return self.tree is None and self.max_nodes > 1 and self.caught_up and self.drafted_for

    @property
    def drafted_for(self) -> bool:
        """Whether the drafter makes trees for this request when asked, or works towards it."""
        return self.key is not None and self.fed and not self.refused

    @property
    def takes_over(self) -> bool:
        """Whether a request that another drafter has until now may go on with this one without missing its trees."""
        near = self.max_nodes <= 1 or (self.answered > 0 and self.base_length - self.answered <= NEAR_TOKENS)
        return self.drafted_for and near

    def open(self, key: RequestKey, tally: Tally, *, caught_up: bool, boundaries: tuple[int, ...] = ()) -> None:
        """Take a request under a new generation."""
        self.generation += 1
        self.key = key
        self.tally = tally
        self.tree = self.given = None
        self.answered = 0
        self.fed = self.refused = self.late = False
        self.boundaries = boundaries
        self.caught_up = caught_up

    def stand_at(self, base_length: int, root_token: int, max_nodes: int, max_depth: int, offer: Offer) -> None:
        """Move to a new state; the budget is cut to what the proposer offers. A tree for the old state is dropped."""
        self.base_length = base_length
        self.root_token = root_token
        self.max_nodes = min(max_nodes, offer.max_nodes)
        self.max_depth = min(max_depth, offer.max_depth)
        self.tree = None

    def give(self) -> TokenTree | None:
        """The tree for the step that begins, None for a plain row."""
        self.given = self.tree or None
        return self.given

    def settle(self, tokens: Sequence[int]) -> None:
        """The step has committed these tokens."""
        if self.given is not None:
            self.tally.settle(self.given, tokens)
            self.given = None

    def close(self) -> None:
        """Let the request go."""
        self.key = None
        self.tree = self.given = None
        self.fed = self.announced = self.late = self.explained = False


class SlotTable:
    """Slots 0 to `size` - 1; the lowest free one is taken first."""

    __slots__ = ("_free", "_slots", "size")

    def __init__(self, epoch: int, size: int) -> None:
        self.size = size
        self._slots = [Slot(epoch, index) for index in range(size)]
        self._free = list(range(size))

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
