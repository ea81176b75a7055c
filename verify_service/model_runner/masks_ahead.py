"""Masks that a step will ask for, computed while its pass runs: of roots first, then of drafted nodes, likeliest first.

A mask is a function of the tokens that lead to its row, so that one that was computed early is the one that would be
computed late. A row without one in time is decided as ever (`constrained_path`): it is merely no cheaper.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import NamedTuple

from slipstream_kernels.device_tree import DeviceTree
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.grammar.matcher import GrammarFailure
from verify_service.grammar.request_grammar import AllowedTokens, RequestGrammar
from verify_service.grammar.together import Together, WordRows

_log = logging.getLogger(__name__)
Masks = Mapping[int, AllowedTokens]
"""What may come next by row of a request's tree: 0 for the root, 1 + i for node i."""
NO_MASKS: Masks = MappingProxyType({})
_ALL = 0xFFFFFFFF
_NEEDED, _LIKELY, _POSSIBLE = -3.0, -2.0, -1.0
"""Ranks of roots, in front of all nodes'."""


class _Due(NamedTuple):
    """A mask to compute: of an item, by its place, at a node. `rank` of nodes is minus their path's log probability."""

    rank: float
    depth: int
    place: int
    node: int


class MasksAhead:
    """Masks of requests that filter tokens, and of those whose output has lately strayed from its grammar.

    What is computed is a question about the output for the root of a request with filters, whose mask is needed
    whatever the pass gives; for all other rows it is one about drafts. One that fails leaves its row without a mask:
    whoever decides the row asks again, and learns why. Used by one thread at a time.
    """

    def __init__(
        self, items: Sequence[ScheduledRequest], room: WordRows, together: Together, *, all_roots: bool = False
    ) -> None:
        """`room`, uint32 [n, words], is where the masks lie, as long as no other step's do.

        all_roots: those of all requests with a grammar, too, once the others are there.
        """
        self._room = room
        self._together = together
        self.taken = 0
        """Rows of the room that have a mask, or were to have one."""
        self.sent = False
        """Whether the pass has got the masks, those that were there."""
        self._masks: dict[ScheduledRequest, dict[int, AllowedTokens]] = {}
        self._rows: dict[ScheduledRequest, dict[int, int]] = {}
        self._due: list[_Due] = []
        """A heap."""
        self._items: list[ScheduledRequest] = []
        for item in items:
            grammar = item.state.grammar
            if grammar is None or item.state.finished:
                continue
            rank = _NEEDED if _filters(item) else _LIKELY if grammar.strays else _POSSIBLE
            if rank < _POSSIBLE or all_roots:
                heapq.heappush(self._due, _Due(rank, 0, len(self._items), -1))
                self._items.append(item)
                self._masks[item], self._rows[item] = {}, {}

    def __bool__(self) -> bool:
        """Whether any mask is left to compute."""
        return bool(self._due)

    def of(self, item: ScheduledRequest) -> Masks:
        """Return the masks of a request's rows that are there."""
        return self._masks.get(item, NO_MASKS)

    def rows_of(self, item: ScheduledRequest) -> Mapping[int, int]:
        """Return where in the room those are that are rows to be sampled under, by row of the request's tree."""
        return self._rows.get(item, {})

    def compute(self, is_over: Callable[[], bool]) -> float:
        """Compute one batch of masks after another until none is left, or it `is_over`.

        Return the seconds of the last one, within which it came to be over; 0 where it did not.
        """
        began = 0.0
        while self._due and not is_over():
            began = time.perf_counter()
            self._compute_next()
        return time.perf_counter() - began if began and is_over() else 0.0

    def finish(self) -> None:
        """Compute masks of roots that are needed in any case; then none is left to compute."""
        self._due = [due for due in self._due if due.rank == _NEEDED]
        while self._due and self._due[0].rank == _NEEDED:
            self._compute_next()
        self._due.clear()

    def _compute_next(self) -> None:
        found: list[tuple[_Due, RequestGrammar]] = []
        for due in self._next():
            grammar = self._items[due.place].state.grammar
            assert grammar is not None
            found.append((due, grammar))
        self._together.follow(
            [(grammar, self._items[due.place].state.output_tokens) for due, grammar in found if due.node < 0]
        )
        there = [(due, grammar) for due, grammar in found if self._goes_there(due, grammar)]
        asked = [(due, grammar) for due, grammar in there if grammar.has_begun]
        for due, grammar in there:
            if not grammar.has_begun:
                self._leave_open(due, grammar)
        first = self.taken
        self.taken += len(asked)
        answered = self._together.masks([grammar for _, grammar in asked], self._room, first)
        for row, ((due, grammar), complete) in enumerate(zip(asked, answered, strict=True), first):
            self._take(due, grammar, row, complete)

    def _next(self) -> list[_Due]:
        """Take out what is to be asked for together: of each request one mask, and of those of one rank's kind."""
        room = len(self._room) - self.taken
        if not room:
            self._due.clear()
        found: list[_Due] = []
        later: list[_Due] = []
        places: set[int] = set()
        while (
            self._due and len(found) < min(self._together.size, room) and (not found or _alike(found[0], self._due[0]))
        ):
            due = heapq.heappop(self._due)
            (later if due.place in places else found).append(due)
            places.add(due.place)
        for due in later:
            heapq.heappush(self._due, due)
        return found

    def _goes_there(self, due: _Due, grammar: RequestGrammar) -> bool:
        """Bring a grammar to where it is to be asked; return whether it can be followed there."""
        item = self._items[due.place]
        tree = item.tree
        if not (due.rank == _NEEDED or grammar.may_draft):
            return False
        try:
            grammar.follow_output(item.state.output_tokens)
            if tree is not None and due.node >= 0:
                with grammar.asked_for_drafts():
                    for above in tree.path(due.node):
                        grammar.step(tree.token_ids[above])
        except GrammarFailure:
            return False
        except Exception:  # noqa: BLE001 - a step is for other requests, too
            _log.exception("a grammar could not be followed ahead")
            return False
        return True

    def _leave_open(self, due: _Due, grammar: RequestGrammar) -> None:
        """In front of where a grammar begins any token may come, also of a row that is sampled under masks alone."""
        item = self._items[due.place]
        if _filters(item):
            self._room[self.taken] = _ALL
            self._rows[item][1 + due.node] = self.taken
            self.taken += 1
        self._add_children(due, grammar, None)

    def _take(self, due: _Due, grammar: RequestGrammar, row: int, complete: bool | None) -> None:
        item = self._items[due.place]
        try:
            with nullcontext() if due.rank == _NEEDED else grammar.asked_for_drafts():
                allowed = grammar.allowed(self._room[row], complete=complete)
        except GrammarFailure:
            return
        except Exception:  # noqa: BLE001 - a step is for other requests, too
            _log.exception("a grammar could not be asked ahead")
            return
        self._masks[item][1 + due.node] = allowed
        if allowed.only is None:
            self._rows[item][1 + due.node] = row
        self._add_children(due, grammar, allowed)

    def _add_children(self, due: _Due, grammar: RequestGrammar, allowed: AllowedTokens | None) -> None:
        tree = self._items[due.place].tree
        possible = due.rank == _POSSIBLE and not grammar.strays
        if tree is None or possible or isinstance(tree, DeviceTree) or (allowed and allowed.only is not None):
            return
        for child in tree.children(due.node):
            token = tree.token_ids[child]
            if (allowed is None or allowed.has(token)) and not grammar.ends_output(token):
                rank = 0.0 if tree.log_probs is None else -tree.log_probs[child]
                heapq.heappush(self._due, _Due(rank, due.depth + 1, due.place, child))


def _alike(one: _Due, other: _Due) -> bool:
    """Whether both are roots that are as urgent, or both are nodes."""
    return one.rank == other.rank if one.node < 0 or other.node < 0 else True


def _filters(item: ScheduledRequest) -> bool:
    return item.state.parameters.sampling.is_filtered
