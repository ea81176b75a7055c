"""Calls of a proposer for trees: whatever the proposer does, each request gets an answer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import index
from time import perf_counter
from typing import NamedTuple

from draft_service.proposers.base import DraftFuture, DraftRequest, Proposer
from draft_service.protocol.records import EMPTY_TREE
from draft_service.worker.device_fault import end_if_device_lost
from draft_service.worker.session_table import SessionSlot
from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.records import Reply
from slipstream_kernels.token_tree import InvalidTreeError, TokenTree

_log = logging.getLogger(__name__)

MAX_LOG_PROB = 1e30
"""Magnitude below which a path's log-probability survives the wire's float32."""


class DraftCall:
    """Trees of one proposer, begun as this is made. Nothing raises."""

    __slots__ = ("_begun", "_proposer", "_requests", "_vocab_size")

    def __init__(self, proposer: Proposer, requests: Sequence[DraftRequest], vocab_size: int) -> None:
        self._proposer = proposer
        self._requests = requests
        self._vocab_size = vocab_size
        self._begun: DraftFuture | None = None
        try:
            self._begun = proposer.begin(requests)
        except Exception:  # noqa: BLE001 (a third party's code)
            self._failed()

    def wait(self, seconds: float) -> bool:
        """Wait, `seconds` at most. Return whether `result` would return at once."""
        try:
            return self._begun is None or self._begun.wait(seconds)
        except Exception:  # noqa: BLE001 (as above; `result` meets it again)
            return True

    def device_trees(self) -> Sequence[TokenTree | None] | None:
        """Return the trees before the host knows them, all of them `DeviceTree`s; None where only `result` has them."""
        try:
            found = None if self._begun is None else self._begun.device_trees()
        except Exception:  # noqa: BLE001 (a third party's code; `result` gets what there is)
            return None
        fits = found is not None and len(found) == len(self._requests)
        return found if fits and all(isinstance(tree, DeviceTree) for tree in found or ()) else None

    def result(self) -> list[TokenTree | None]:
        """Return one tree a request in plain integers and floats: empty for no guess, None for a failure."""
        trees = self._attempt()
        if trees is None and len(self._requests) > 1:
            # The requests that fail alone lose their trees, not the others.
            return [DraftCall(self._proposer, [each], self._vocab_size).result()[0] for each in self._requests]
        if trees is None:
            return [None]
        return [
            self._checked(request, EMPTY_TREE if tree is None else tree)
            for request, tree in zip(self._requests, trees, strict=True)
        ]

    def _attempt(self) -> list[object] | None:
        if self._begun is None:
            return None
        try:
            trees: list[object] = list(self._begun.result())
        except Exception:  # noqa: BLE001 (a third party's code)
            self._failed()
            return None
        if len(trees) != len(self._requests):
            _log.error(
                "proposer %s made %d trees for %d requests", self._proposer.name, len(trees), len(self._requests)
            )
            return None
        return trees

    def _failed(self) -> None:
        _log.exception("proposer %s failed", self._proposer.name)
        end_if_device_lost()

    def _checked(self, request: DraftRequest, tree: object) -> TokenTree | None:
        """The tree, None if it is not one that verify would take."""
        try:
            if not isinstance(tree, TokenTree):
                raise InvalidTreeError(f"{type(tree).__name__} is no TokenTree")
            tree.validate(vocab_size=self._vocab_size, max_nodes=request.max_nodes - 1, max_depth=request.max_depth)
            if not all(-MAX_LOG_PROB < log_prob < MAX_LOG_PROB for log_prob in tree.log_probs or ()):
                raise InvalidTreeError("log_probs must be finite float32 numbers")
            if type(tree) is TokenTree and tree.sources is None and _is_plain(tree):
                return tree
            return TokenTree(
                tuple(map(index, tree.token_ids)),
                tuple(map(index, tree.parents)),
                None if tree.log_probs is None else tuple(map(float, tree.log_probs)),
                None if tree.sources is None else tuple(map(str, tree.sources)),
            )
        except Exception as error:  # noqa: BLE001 (a third party's objects may fail in any way)
            _log.error("proposer %s made a malformed tree: %.200s", self._proposer.name, error)
            return None


class Asked(NamedTuple):
    """A call of one proposer, and the slots whose trees it makes."""

    call: DraftCall
    slots: list[SessionSlot]


class DraftBatch(NamedTuple):
    """Replies of one pass: those that are there, and calls whose trees are not yet."""

    replies: list[Reply]
    asked: list[Asked]

    @property
    def is_handed(self) -> bool:
        """Whether nobody waits for an answer: steps have all of its trees from the device."""
        handed = not self.replies and all(slot.handed for one in self.asked for slot in one.slots)
        return handed and all(one.call.device_trees() is not None for one in self.asked)

    def wait(self, until: float) -> bool:
        """Wait until `until` (time.perf_counter(), seconds). Return whether all calls are done."""
        return all(one.call.wait(until - perf_counter()) for one in self.asked)

    def device_trees(self) -> list[Sequence[TokenTree | None]] | None:
        """Return the trees by proposer; None unless all of them are on the device."""
        trees = [trees for one in self.asked if (trees := one.call.device_trees()) is not None]
        return trees if trees and len(trees) == len(self.asked) else None


def _is_plain(tree: TokenTree) -> bool:
    """Whether a tree's lists are tuples of Python's own numbers."""
    ids, parents, log_probs = tree.token_ids, tree.parents, tree.log_probs
    tuples = type(ids) is tuple and type(parents) is tuple and (log_probs is None or type(log_probs) is tuple)
    return tuples and {*map(type, ids + parents)} <= {int} and {*map(type, log_probs or ())} <= {float}
