"""Spares steps the work for drafters while every one of them is unresponsive, but for a heartbeat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verify_service.core.draft_source import Committed

HEARTBEAT_SECONDS = 1.0
"""Between two heartbeats: commits that are sent to unresponsive drafters all the same."""
MAX_TOKENS = 4096
"""Of one commit message, so that it fits every transport."""


class LinkPause:
    """The state of a link whose drafters hang. The loop's thread alone uses it.

        answering --all unresponsive--> active: commits are dropped, no tree is taken
            ^                              |  ^
            |                              |  +-- a heartbeat each HEARTBEAT_SECONDS: a commit that asks for a tree,
            |                              |      so that a drafter which goes on sends a message
            +--commit, one has answered----+      or another draft service has attached

    No tree is taken while it is active, as drafters lack the dropped commits; the commit that ends it has all of them.
    """

    __slots__ = ("_heartbeat_at", "active")

    def __init__(self) -> None:
        self.active = False
        self._heartbeat_at = 0.0

    def accepts_commits(self, now: float, *, unresponsive: bool) -> bool:
        """Return whether the next commit is to be sent: always, while a drafter answers."""
        if not unresponsive:
            return True
        if self.active and now - self._heartbeat_at >= HEARTBEAT_SECONDS:
            self._heartbeat_at = now
            return True
        if not self.active:
            self.active, self._heartbeat_at = True, now
        return False

    def begin_commit(self, commits: Sequence[Committed], *, unresponsive: bool) -> Iterator[Sequence[Committed]]:
        """Return what is to be sent of these commits, in parts of one message each; end the pause if a drafter answers.

        A heartbeat asks for a tree of one node.
        """
        if self.active:
            self.active = unresponsive
            if unresponsive:
                commits = [each._replace(max_nodes=2, max_depth=1) for each in commits]
        return _parts(commits)


def _parts(commits: Sequence[Committed]) -> Iterator[Sequence[Committed]]:
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
