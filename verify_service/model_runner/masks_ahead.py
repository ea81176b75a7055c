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

from slipstream_kernels.device_tree import DeviceTree
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.grammar.matcher import GrammarFailure
from verify_service.grammar.request_grammar import AllowedTokens

_log = logging.getLogger(__name__)
Masks = Mapping[int, AllowedTokens]
"""What may come next by row of a request's tree: 0 for the root, 1 + i for node i."""
NO_MASKS: Masks = MappingProxyType({})


class MasksAhead:
    """Masks of requests that filter tokens, and of those whose output has lately strayed from its grammar.

    What is computed is a question about the output for the root of a request with filters, whose mask is needed
    whatever the pass gives; for all other rows it is one about drafts. One that fails leaves its row without a mask:
    whoever decides the row asks again, and learns why. Used by one thread at a time.
    """

    def __init__(self, items: Sequence[ScheduledRequest]) -> None:
        self._masks: dict[ScheduledRequest, dict[int, AllowedTokens]] = {}
        self._due: list[tuple[float, int, int, int]] = []
        """A heap: minus the path's log probability, depth, place among `_items`, node."""
        self._items: list[ScheduledRequest] = []
        for item in items:
            grammar = item.state.grammar
            if grammar is None or item.state.finished or not (_filters(item) or grammar.strays):
                continue
            self._due.append((-1.0, 0, len(self._items), -1))
            self._items.append(item)
            self._masks[item] = {}

    def __bool__(self) -> bool:
        """Whether any mask is left to compute."""
        return bool(self._due)

    def of(self, item: ScheduledRequest) -> Masks:
        """Return the masks of a request's rows that are there."""
        return self._masks.get(item, NO_MASKS)

    def compute(self, is_over: Callable[[], bool]) -> float:
        """Compute one mask after another until none is left, or it `is_over`.

        Return the seconds of the last one, within which it came to be over; 0 where it did not.
        """
        began = 0.0
        while self._due and not is_over():
            began = time.perf_counter()
            self._compute_next()
        return time.perf_counter() - began if began and is_over() else 0.0

    def finish(self) -> None:
        """Compute masks of roots that are needed in any case; then none is left to compute."""
        self._due = [each for each in self._due if each[3] < 0 and _filters(self._items[each[2]])]
        while self._due and self._due[0][3] < 0:
            self._compute_next()
        self._due.clear()

    def _compute_next(self) -> None:
        _, depth, place, node = heapq.heappop(self._due)
        item = self._items[place]
        tree, grammar = item.tree, item.state.grammar
        assert grammar is not None
        certain = node < 0 and _filters(item)
        if not (certain or grammar.may_draft):
            return
        try:
            grammar.follow_output(item.state.output_tokens)
            with nullcontext() if certain else grammar.asked_for_drafts():
                for token in [tree.token_ids[above] for above in tree.path(node)] if tree is not None else ():
                    grammar.step(token)
                allowed = grammar.allowed() if grammar.has_begun else None
        except GrammarFailure:
            return
        except Exception:  # noqa: BLE001 - a step is for other requests, too
            _log.exception("a grammar could not be asked ahead")
            return
        if allowed is not None:
            self._masks[item][1 + node] = allowed
        self._add_children(place, node, depth, allowed)

    def _add_children(self, place: int, node: int, depth: int, allowed: AllowedTokens | None) -> None:
        tree, grammar = self._items[place].tree, self._items[place].state.grammar
        if tree is None or grammar is None or isinstance(tree, DeviceTree) or (allowed and allowed.only is not None):
            return
        for child in tree.children(node):
            token = tree.token_ids[child]
            if (allowed is None or allowed.has(token)) and not grammar.ends_output(token):
                rank = 0.0 if tree.log_probs is None else -tree.log_probs[child]
                heapq.heappush(self._due, (rank, depth + 1, place, child))


def _filters(item: ScheduledRequest) -> bool:
    return item.state.parameters.sampling.is_filtered
