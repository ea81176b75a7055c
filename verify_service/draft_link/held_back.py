"""Spares steps the work of telling drafters that hang what happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from slipstream.generation_types import FinishReason
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import Committed, DraftSource, Opening, OutcomeTree, OutcomeTreeSource
from verify_service.core.request import RequestKey

TOLD_SECONDS = 1.0
"""How often a drafter that hangs is told what has happened meanwhile, by which one that goes on takes notice."""
MOST_TOKENS = 4096
"""Told at once: of a message that fits every transport."""


class Link(DraftSource, OutcomeTreeSource, Protocol):
    """Where drafters are attached."""

    def deaf(self) -> bool:
        """Whether every drafter hangs that has requests."""
        ...


class PausingLink:
    """The link as the verify loop sees it. Implements TreeSource and ForesightSource.

    While all drafters hang it does not listen, but once in a while. Then it asks them for trees of which nothing comes
    but the notice that one goes on: steps that are launched ahead of the tokens ask for none. Until what was left out
    is told the link lags behind, so that no tree is taken from it. The first commit after a drafter is heard, or
    another one attaches, brings it up to date.
    """

    __slots__ = ("_clock", "_lags", "_link", "_told_at")

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._lags = False
        self._told_at = 0.0

    def known(self, name: str) -> bool:
        return self._link.known(name)

    def default(self) -> str | None:
        return self._link.default()

    def begin(self, opening: Opening) -> None:
        self._link.begin(opening)

    def listens(self) -> bool:
        if not self._link.deaf():
            return True
        now = self._clock()
        if self._lags and now - self._told_at >= TOLD_SECONDS:
            self._told_at = now
            return True
        if not self._lags:
            self._lags, self._told_at = True, now
        return False

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        if self._lags:
            self._lags = self._link.deaf()
            if self._lags:
                commits = [each._replace(max_nodes=2, max_depth=1) for each in commits]
        return {key for part in _parts(commits) for key in self._link.commit(part)}

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        """None for all, without a wait, while the link lags behind."""
        return [None] * len(wanted) if self._lags else self._link.collect(wanted)

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        return not self._lags and self._link.expects(keys)

    def foresees(self, keys: Sequence[RequestKey]) -> bool:
        return self._lags or self._link.foresees(keys)

    def await_prepared(self, keys: Sequence[RequestKey], seconds: float) -> bool:
        return self._lags or self._link.await_prepared(keys, seconds)

    def take_prepared(self, keys: Sequence[RequestKey]) -> list[Sequence[OutcomeTree]]:
        """Nothing while the link lags behind."""
        return [()] * len(keys) if self._lags else self._link.take_prepared(keys)

    def end(self, key: RequestKey, reason: FinishReason) -> None:
        self._link.end(key, reason)


def _parts(commits: Sequence[Committed]) -> Iterator[list[Committed]]:
    """All commits in order, in as few parts as hold no more than MOST_TOKENS, or one commit."""
    part: list[Committed] = []
    tokens = 0
    for committed in commits:
        if part and tokens + len(committed.token_ids) > MOST_TOKENS:
            yield part
            part, tokens = [], 0
        part.append(committed)
        tokens += len(committed.token_ids)
    yield part
