"""A round that was queued behind a pass of the target, until it is known what the pass decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from draft_service.gpu.paged_sessions import PagedSession
from draft_service.proposers.base import Begun, DraftRequest
from slipstream_kernels.models.gpu.draft.draft_round import RoundTicket
from slipstream_kernels.token_tree import TokenTree


class Laid(NamedTuple):
    """A session in a round: commits and computed rows of text that it had before, and most rows that the round adds."""

    commits: int
    length: int
    rows: int


class FollowedRound:
    """Trees for the states that the pass leads to, one a session, in their order."""

    __slots__ = ("_laid", "_ticket")

    def __init__(self, ticket: RoundTicket, laid: Mapping[PagedSession, Laid]) -> None:
        self._ticket = ticket
        self._laid = laid

    def made_for(self, session: PagedSession) -> bool:
        """Whether it has a tree for the session's present tokens: what the pass decided has come, and no more."""
        laid = self._laid.get(session)
        return (
            laid is not None
            and session.commits == laid.commits + 1
            and session.length == laid.length
            and session.is_complete
            and 0 < session.pending <= laid.rows
        )

    def wait(self, seconds: float) -> bool:
        """Whether `trees` would not wait, after so many seconds at most."""
        return self._ticket.wait(seconds)

    def trees(self) -> dict[int, TokenTree]:
        """By session; waits for the device. To be called before anything else is queued there."""
        numbers = (session.number for session in self._laid)
        return dict(zip(numbers, self._ticket.trees(), strict=True))


class FollowedAnswer:
    """A `Begun`: what a round behind a pass has made for some requests, then what their own makes for others."""

    __slots__ = ("_others", "_requests", "_round", "_wanted")

    def __init__(
        self,
        followed: FollowedRound,
        wanted: Sequence[DraftRequest],
        requests: Sequence[DraftRequest],
        others: Callable[[Sequence[DraftRequest]], Begun],
    ) -> None:
        """`wanted` are those of `requests` that the round was made for."""
        self._round = followed
        self._wanted = {request.session: request for request in wanted}
        self._requests = requests
        self._others = others

    def wait(self, seconds: float) -> bool:
        return self._round.wait(seconds)

    def trees(self) -> list[TokenTree | None]:
        trees = self._round.trees()
        made: dict[int, TokenTree | None] = {
            session: _within(trees[session], request) for session, request in self._wanted.items()
        }
        left = [request for request in self._requests if request.session not in made]
        if left:
            made |= zip((request.session for request in left), self._others(left).trees(), strict=True)
        return [made[request.session] for request in self._requests]


def _within(tree: TokenTree, request: DraftRequest) -> TokenTree:
    """What of a tree keeps to the limits, which may have come after it was begun."""
    if len(tree) < request.max_nodes and tree.depth <= request.max_depth:
        return tree
    return tree.truncated(request.max_nodes - 1, request.max_depth)
