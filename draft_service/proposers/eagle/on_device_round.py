"""A round that was queued behind a pass of the target, until it is known what the pass decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import NamedTuple

from draft_service.proposers.base import DraftFuture, DraftRequest
from draft_service.proposers.eagle.paged_sessions import PagedSession
from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.models.gpu.draft.round.draft_handle import DraftHandle
from slipstream_kernels.token_tree import TokenTree


class Laid(NamedTuple):
    """A session in a round: commits and computed rows of text that it had before, and most rows that the round adds.

    Its tree has `nodes` nodes and `depth` levels at most.
    """

    commits: int
    length: int
    rows: int
    nodes: int
    depth: int


class OnDeviceRound:
    """Trees for the states that the pass leads to, one a session, in their order."""

    __slots__ = ("_came", "_handle", "_laid", "_places")

    def __init__(
        self, handle: DraftHandle, laid: Mapping[PagedSession, Laid], came: Callable[[], bool] = lambda: True
    ) -> None:
        """`came`: whether it has read what a pass decided; asked once the pass is known to be over."""
        self._came = came
        self._handle = handle
        self._laid = laid
        self._places = {session: place for place, session in enumerate(laid)}

    def made_for(self, session: PagedSession) -> bool:
        """Whether it has a tree for the session's present tokens: what the pass decided has come, and no more."""
        laid = self._laid.get(session)
        return (
            laid is not None
            and session.commits == laid.commits + 1
            and session.length == laid.length
            and session.is_complete
            and 0 < session.pending <= laid.rows
            and self._came()
        )

    def wait(self, seconds: float) -> bool:
        """Wait for the device, `seconds` at most. Return whether `trees` would return at once."""
        return self._handle.wait(seconds)

    def device_tree(self, session: PagedSession, request: DraftRequest) -> DeviceTree | None:
        """Return the tree made for a session, before the host knows it; None if it may exceed the limits."""
        laid = self._laid[session]
        nodes, depth = laid.nodes, laid.depth
        if nodes >= request.max_nodes or depth > request.max_depth:
            return None
        return DeviceTree(self._handle, self._places[session], nodes, depth)

    def trees(self) -> dict[int, TokenTree]:
        """By session; waits for the device."""
        numbers = (session.number for session in self._laid)
        return dict(zip(numbers, self._handle.trees(), strict=True))


class ChainedDraftFuture:
    """A `DraftFuture` of two rounds: the one behind the target's pass, then one for the requests it has no tree for."""

    __slots__ = ("_left", "_made", "_others", "_requests", "_rest", "_round", "_sessions", "_wanted")

    def __init__(
        self,
        followed: OnDeviceRound,
        wanted: Mapping[PagedSession, DraftRequest],
        requests: Sequence[DraftRequest],
        others: Callable[[Sequence[DraftRequest]], DraftFuture],
    ) -> None:
        """`wanted` are those of `requests` that the round was made for."""
        self._round = followed
        self._sessions = tuple(wanted)
        self._wanted = {request.session: request for request in wanted.values()}
        self._requests = requests
        self._left = [request for request in requests if request.session not in self._wanted]
        self._others = others
        self._made: dict[int, TokenTree | None] | None = None
        """What the round has made, once the other requests' own is begun."""
        self._rest: DraftFuture | None = None

    def wait(self, seconds: float) -> bool:
        until = perf_counter() + seconds
        if self._made is None:
            if not self._round.wait(seconds):
                return False
            self._gather()
        return self._rest is None or self._rest.wait(until - perf_counter())

    def device_trees(self) -> list[TokenTree] | None:
        if self._left or self._made is not None:
            return None
        found: dict[int, TokenTree] = {}
        for session in self._sessions:
            tree = self._round.device_tree(session, self._wanted[session.number])
            if tree is None:
                return None
            found[session.number] = tree
        return [found[request.session] for request in self._requests]

    def result(self) -> list[TokenTree | None]:
        made = self._gather() if self._made is None else self._made
        if self._rest is not None:
            made |= zip((request.session for request in self._left), self._rest.result(), strict=True)
        return [made[request.session] for request in self._requests]

    def _gather(self) -> dict[int, TokenTree | None]:
        """Take the round's trees, and begin with the others."""
        trees = self._round.trees()
        made: dict[int, TokenTree | None] = {
            session: _within(trees[session], request) for session, request in self._wanted.items()
        }
        self._rest = self._others(self._left) if self._left else None
        self._made = made
        return made


def _within(tree: TokenTree, request: DraftRequest) -> TokenTree:
    """What of a tree keeps to the limits, which may have come after it was begun."""
    if len(tree) < request.max_nodes and tree.depth <= request.max_depth:
        return tree
    return tree.truncated(request.max_nodes - 1, request.max_depth)
