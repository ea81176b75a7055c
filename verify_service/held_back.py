"""Spares steps the work of telling drafters that hang what happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from slipstream_kernels.token_tree import TokenTree
from verify_service.request import FinishReason, RequestKey
from verify_service.tree_source import Committed, ForesightSource, Opening, Prepared, TreeSource

TOLD_SECONDS = 1.0
"""How often a drafter that hangs is told what has happened meanwhile, by which one that goes on takes notice."""
MOST_TOKENS = 4096
"""Told at once: of a message that fits every transport."""


class Link(TreeSource, ForesightSource, Protocol):
    """Where drafters are attached."""

    def deaf(self) -> bool:
        """Whether every drafter that is attached hangs."""
        ...


class HeldBack:
    """The link as the verify loop sees it. Implements TreeSource and ForesightSource.

    While all drafters hang, what steps commit is held back and told in one piece a request from time to time, without
    hidden states. Until the last of it is told the link lags behind, so that no tree is taken from it. The first commit
    after a drafter is heard, or another one attaches, brings it up to date.
    """

    __slots__ = ("_clock", "_held", "_holding", "_link", "_tokens", "_told_at")

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._held: list[Sequence[Committed]] = []
        self._holding = False
        self._tokens = 0
        self._told_at = 0.0

    def known(self, name: str) -> bool:
        return self._link.known(name)

    def default(self) -> str | None:
        return self._link.default()

    def begin(self, opening: Opening) -> None:
        self._tell()  # keys may be used again
        self._link.begin(opening)

    def commit(self, commits: Sequence[Committed]) -> None:
        """Tell the link, or hold back."""
        deaf = self._link.deaf()
        if self._holding:
            self._held.append(commits)
            self._tokens += sum(len(committed.token_ids) for committed in commits)
            if not deaf or self._tokens >= MOST_TOKENS or self._clock() - self._told_at >= TOLD_SECONDS:
                self._tell()
        else:
            self._link.commit(commits)
            self._told_at = self._clock()
        self._holding = deaf

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        """None for all, without a wait, while anything may be held back."""
        return [None] * len(wanted) if self._holding else self._link.collect(wanted)

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        return not self._holding and self._link.expects(keys)

    def foresees(self, keys: Sequence[RequestKey]) -> bool:
        return self._holding or self._link.foresees(keys)

    def await_prepared(self, keys: Sequence[RequestKey], seconds: float) -> bool:
        return self._holding or self._link.await_prepared(keys, seconds)

    def take_prepared(self, keys: Sequence[RequestKey]) -> list[Sequence[Prepared]]:
        """Nothing while anything may be held back."""
        return [()] * len(keys) if self._holding else self._link.take_prepared(keys)

    def end(self, key: RequestKey, reason: FinishReason) -> None:
        self._link.end(key, reason)

    def _tell(self) -> None:
        """Hand over what was held back, in the order of the requests' first commits."""
        if not self._held:
            return
        newest: dict[RequestKey, Committed] = {}
        tokens: dict[RequestKey, list[int]] = {}
        for commits in self._held:
            for committed in commits:
                newest[committed.key] = committed
                tokens.setdefault(committed.key, []).extend(committed.token_ids)
        self._held, self._tokens, self._told_at = [], 0, self._clock()
        self._link.commit([newest[key]._replace(token_ids=tuple(ids), features=None) for key, ids in tokens.items()])
