"""Drops commits while every drafter is unresponsive, but for a heartbeat."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from slipstream.generation_types import FinishReason
from slipstream_kernels.token_tree import TokenTree
from verify_service.core.draft_source import Committed, DraftSource, Opening, OutcomeTree, OutcomeTreeSource
from verify_service.core.request import RequestKey

HEARTBEAT_SECONDS = 1.0
"""Between two heartbeats: commits that are sent to unresponsive drafters all the same."""
MAX_TOKENS = 4096
"""Of one commit message, so that it fits every transport."""


class Link(DraftSource, OutcomeTreeSource, Protocol):
    """Where drafters are attached."""

    def paused(self) -> bool:
        """Whether every drafter that has requests is unresponsive."""
        ...


class PausingLink:
    """The link as the verify loop sees it. Implements DraftSource and OutcomeTreeSource.

    While every drafter is unresponsive, drop commits; once per `HEARTBEAT_SECONDS` send one that asks for a tree, so
    that a drafter which goes on sends a message. Take no trees meanwhile: the link is paused, and its drafters lack the
    dropped commits. The first commit after a message, or after another draft service attaches, brings them up to date.
    """

    __slots__ = ("_clock", "_heartbeat_at", "_link", "_paused")

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._paused = False
        self._heartbeat_at = 0.0

    def known(self, name: str) -> bool:
        return self._link.known(name)

    def default(self) -> str | None:
        return self._link.default()

    def begin(self, opening: Opening) -> None:
        self._link.begin(opening)

    def accepts_commits(self) -> bool:
        if not self._link.paused():
            return True
        now = self._clock()
        if self._paused and now - self._heartbeat_at >= HEARTBEAT_SECONDS:
            self._heartbeat_at = now
            return True
        if not self._paused:
            self._paused, self._heartbeat_at = True, now
        return False

    def commit(self, commits: Sequence[Committed]) -> Collection[RequestKey]:
        if self._paused:
            self._paused = self._link.paused()
            if self._paused:
                commits = [each._replace(max_nodes=2, max_depth=1) for each in commits]
        return {key for part in _parts(commits) for key in self._link.commit(part)}

    def collect(self, wanted: Sequence[RequestKey]) -> list[TokenTree | None]:
        """None for all, without a wait, while paused."""
        return [None] * len(wanted) if self._paused else self._link.collect(wanted)

    def expects(self, keys: Sequence[RequestKey]) -> bool:
        return not self._paused and self._link.expects(keys)

    def drafts_ahead_only(self, keys: Sequence[RequestKey]) -> bool:
        return self._paused or self._link.drafts_ahead_only(keys)

    def wait_for_outcomes(self, keys: Sequence[RequestKey], seconds: float) -> bool:
        return self._paused or self._link.wait_for_outcomes(keys, seconds)

    def take_outcome_trees(self, keys: Sequence[RequestKey]) -> list[Sequence[OutcomeTree]]:
        """Nothing while paused."""
        return [()] * len(keys) if self._paused else self._link.take_outcome_trees(keys)

    def end(self, key: RequestKey, reason: FinishReason) -> None:
        self._link.end(key, reason)


def _parts(commits: Sequence[Committed]) -> Iterator[list[Committed]]:
    """All commits in order, in as few parts as hold no more than MAX_TOKENS, or one commit."""
    part: list[Committed] = []
    tokens = 0
    for committed in commits:
        if part and tokens + len(committed.token_ids) > MAX_TOKENS:
            yield part
            part, tokens = [], 0
        part.append(committed)
        tokens += len(committed.token_ids)
    yield part
