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
from slipstream_kernels.token_tree import TokenTree
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
_LONGEST_CHAIN = 16
"""Drafted nodes whose masks are asked for with that of their root."""
_LEARNED = 0.2
"""Weight of the newest batch in what is known of the pace."""


class _Due(NamedTuple):
    """A mask to compute: of an item, by its place, at a node. `rank` of nodes is minus their path's log probability."""

    rank: float
    depth: int
    place: int
    node: int


class MaskPace:
    """What a mask takes where many are computed, as far as is known."""

    def __init__(self) -> None:
        self.each = 2e-5
        """Seconds, what is to be done in Python for it included."""

    def learn(self, masks: int, seconds: float) -> None:
        """So many took so long together."""
        if masks:
            self.each += _LEARNED * (seconds / masks - self.each)


class MasksAhead:
    """Masks of requests that filter tokens, and of those whose output has lately strayed from its grammar.

    What is computed is a question about the output for the root of a request with filters, whose mask is needed
    whatever the pass gives; for all other rows it is one about drafts. One that fails leaves its row without a mask:
    whoever decides the row asks again, and learns why. Used by one thread at a time.
    """

    def __init__(
        self,
        items: Sequence[ScheduledRequest],
        room: WordRows,
        together: Together,
        pace: MaskPace | None = None,
        *,
        all_roots: bool = False,
    ) -> None:
        """`room`, uint32 [n, words], is where the masks lie, as long as no other step's do.

        pace: that of the steps before. all_roots: masks of all roots with a grammar, too, once the others are there.
        """
        self._room = room
        self._pace = pace or MaskPace()
        self._together = together
        self.taken = 0
        """Rows of the room that have a mask, or were to have one."""
        self.launched_at = 0.0
        """When the pass was, time.perf_counter() in seconds."""
        self.sampled = self.sampled_anew = 0
        """Rows that are sampled under masks behind the pass, and those of them that the pass samples, too."""
        self.begun_at = 0.0
        """When masks were begun before `send`, and are no more."""
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

    def compute(self, is_over: Callable[[], bool], until: float | None = None, *, of_roots: bool = False) -> float:
        """Compute one batch of masks after another until none is left, or it `is_over`; `of_roots`: none of a root.

        until: time.perf_counter() by which the last masks of nodes are to be done, as far as that can be foreseen.
        Return the seconds of the last batch, within which it came to be over; 0 where it did not.
        """
        began = 0.0
        while self._due and not is_over():
            began = time.perf_counter()
            before = self.taken
            nodes = self._due[0].node >= 0
            most = len(self._room) if until is None else int((until - began) / self._pace.each)
            if nodes and (of_roots or most < 1):
                return 0.0
            self._compute_next(most)
            self._pace.learn(self.taken - before, time.perf_counter() - began)
        return time.perf_counter() - began if began and is_over() else 0.0

    def finish(self, *, all_roots: bool = False) -> None:
        """Compute masks of roots that are needed in any case, or of all that are due; then none is left to compute."""
        last = _POSSIBLE if all_roots else _NEEDED
        while self._due and self._due[0].node < 0 and self._due[0].rank <= last:
            self._compute_next(0)
        self._due.clear()

    def _compute_next(self, most: int) -> None:
        """Compute a batch of masks: of roots, or of some `most` nodes; so many may come with roots as well."""
        found: list[tuple[_Due, RequestGrammar]] = []
        for due in self._next(most):
            grammar = self._items[due.place].state.grammar
            assert grammar is not None
            found.append((due, grammar))
        roots = [self._items[due.place].state for due, _ in found if due.node < 0]
        self._together.follow([behind for state in roots if (behind := state.unfollowed) is not None])
        there = [(due, grammar) for due, grammar in found if self._goes_there(due, grammar)]
        asked = [(due, grammar) for due, grammar in there if grammar.has_begun]
        for due, grammar in there:
            if not grammar.has_begun:
                self._leave_open(due, grammar)
        nodes = self._chains(asked, most - len(asked))
        chains = [[self._token_of(due, node) for node in chain] for (due, _), chain in zip(asked, nodes, strict=True)]
        row = self.taken
        self.taken += len(asked) + sum(map(len, chains))
        answered = self._together.masks([grammar for _, grammar in asked], self._room, row, chains)
        for (due, grammar), chain, complete in zip(asked, nodes, answered, strict=True):
            self._take(due, grammar, row, complete, chain)
            row += 1 + len(chain)

    def _next(self, most: int) -> list[_Due]:
        """Take out what is to be asked for together: of each request one mask, and of those of one rank's kind.

        Of nodes some `most`.
        """
        room = len(self._room) - self.taken
        if not room:
            self._due.clear()
        found: list[_Due] = []
        later: list[_Due] = []
        places: set[int] = set()
        size = min(self._together.size, room)
        while self._due and len(found) < size and (not found or _alike(found[0], self._due[0])):
            if self._due[0].node >= 0 and len(found) >= most:
                break
            due = heapq.heappop(self._due)
            (later if due.place in places else found).append(due)
            places.add(due.place)
        for due in later:
            heapq.heappush(self._due, due)
        return found

    def _chains(self, asked: Sequence[tuple[_Due, RequestGrammar]], most: int) -> list[list[int]]:
        """Of each that is asked for, nodes below one another whose masks come with its own: the likeliest path.

        Some `most` of them in all, of as many of each request, and none for which there is no room behind all roots.
        """
        found: list[list[int]] = [[] for _ in asked]
        if self._together.size == 1:
            return found
        drafted = [
            (due, chain)
            for (due, grammar), chain in zip(asked, found, strict=True)
            if due.node < 0 and grammar.may_draft and self._goes_below(due, grammar)
        ]
        room = len(self._room) - self.taken - len(asked) - sum(due.node < 0 for due in self._due)
        length = min(_LONGEST_CHAIN, min(most, room) // max(1, len(drafted)))
        if length > 0:
            for due, chain in drafted:
                item = self._items[due.place]
                assert item.tree is not None
                assert item.state.grammar is not None
                chain += _likeliest_path(item.tree, item.state.grammar, length)
        return found

    def _token_of(self, due: _Due, node: int) -> int:
        tree = self._items[due.place].tree
        assert tree is not None
        return tree.token_ids[node]

    def _goes_there(self, due: _Due, grammar: RequestGrammar) -> bool:
        """Bring a grammar to where it is to be asked; return whether it can be followed there."""
        item = self._items[due.place]
        tree = item.tree
        if not (due.rank == _NEEDED or grammar.may_draft):
            return False
        try:
            item.state.follow_output()
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
        self._add_children(due, grammar, due.node, None)

    def _take(
        self, due: _Due, grammar: RequestGrammar, row: int, complete: bool | None, chain: Sequence[int] = ()
    ) -> None:
        """Take in a mask that lies in a row of the room, and those of the nodes of a `chain` below behind it."""
        allowed = self._mask_in(row, due, grammar, complete)
        if allowed is None:
            return
        self._enter(due, due.node, row, allowed)
        above = due.node
        for further, node in enumerate(chain if complete is not None else (), 1):
            words = self._room[row + further]
            if allowed.only is not None or not allowed.has(self._token_of(due, node)):
                break
            if grammar.may_be_complete(words):
                break  # which nobody but the grammar knows, once it is there
            below = self._mask_in(row + further, due, grammar, complete=False, further=further)
            self._add_children(due, grammar, above, allowed, but=node)
            if below is None:
                return
            self._enter(due, node, row + further, below)
            above, allowed = node, below
        self._add_children(due, grammar, above, allowed)

    def _mask_in(
        self, row: int, due: _Due, grammar: RequestGrammar, complete: bool | None, further: int = 0
    ) -> AllowedTokens | None:
        """The mask in a row; None where there is none."""
        try:
            with nullcontext() if due.rank == _NEEDED and not further else grammar.asked_for_drafts():
                return grammar.allowed(self._room[row], complete=complete, further=further)
        except GrammarFailure:
            pass
        except Exception:  # noqa: BLE001 - a step is for other requests, too
            _log.exception("a grammar could not be asked ahead")
        return None

    def _enter(self, due: _Due, node: int, row: int, allowed: AllowedTokens) -> None:
        item = self._items[due.place]
        self._masks[item][1 + node] = allowed
        if allowed.only is None:
            self._rows[item][1 + node] = row

    def _goes_below(self, due: _Due, grammar: RequestGrammar) -> bool:
        """Whether masks of drafted nodes are of use."""
        tree = self._items[due.place].tree
        possible = due.rank == _POSSIBLE and not grammar.strays
        return not (tree is None or possible or isinstance(tree, DeviceTree))

    def _add_children(
        self, due: _Due, grammar: RequestGrammar, node: int, allowed: AllowedTokens | None, but: int | None = None
    ) -> None:
        """The children of a node, where this may come behind it, are due; `but` one of them."""
        tree = self._items[due.place].tree
        if tree is None or not self._goes_below(due, grammar) or (allowed and allowed.only is not None):
            return
        for child in tree.children(node):
            token = tree.token_ids[child]
            if child != but and (allowed is None or allowed.has(token)) and not grammar.ends_output(token):
                rank = 0.0 if tree.log_probs is None else -tree.log_probs[child]
                heapq.heappush(self._due, _Due(rank, tree.depths[child], due.place, child))


def _alike(one: _Due, other: _Due) -> bool:
    """Whether both are nodes, or roots that are needed in any case, or roots that may be."""
    return (one.node < 0, one.rank == _NEEDED) == (other.node < 0, other.rank == _NEEDED)


def _filters(item: ScheduledRequest) -> bool:
    return item.state.parameters.sampling.is_filtered


def _likeliest_path(tree: TokenTree, grammar: RequestGrammar, length: int) -> list[int]:
    """The likeliest nodes below one another, of which none ends the output: up to so many."""
    found: list[int] = []
    node = -1
    while len(found) < length and (children := tree.children(node)):
        node = children[0] if tree.log_probs is None else max(children, key=tree.log_probs.__getitem__)
        if grammar.ends_output(tree.token_ids[node]):
            break
        found.append(node)
    return found
