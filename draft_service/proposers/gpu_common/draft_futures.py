"""Futures of trees that are made in batches, one round of the device each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from draft_service.proposers.base import DraftRequest
from slipstream_kernels.models.gpu.draft.round.draft_handle import DraftHandle
from slipstream_kernels.token_tree import TokenTree

S = TypeVar("S")
"""A session that is ready for a round."""

Launch = Callable[[Sequence[S]], tuple[list[int], DraftHandle | None]]
"""Begins a round; returns the numbers of its sessions, and the round unless it has none."""


class BatchedDraftFuture(Generic[S]):
    """A `DraftFuture` of several rounds: the first is launched at once, the others by `result`."""

    __slots__ = ("_launch", "_left", "_most", "_requests", "_under_way")

    def __init__(self, requests: Sequence[DraftRequest], ready: Sequence[S], most: int, launch: Launch[S]) -> None:
        """Launch the first round of those that are ready, `most` of them a round."""
        self._requests = requests
        self._most = most
        self._launch = launch
        self._left = ready[most:]
        self._under_way = launch(ready[:most])

    def wait(self, seconds: float) -> bool:
        handle = self._under_way[1]
        return handle is None or handle.wait(seconds)

    def device_trees(self) -> None:
        return None

    def result(self) -> list[TokenTree | None]:
        made: dict[int, TokenTree] = {}
        numbers, handle = self._under_way
        while True:
            if handle is not None:
                made |= zip(numbers, handle.trees(), strict=True)
            if not self._left:
                return [made.get(request.session) for request in self._requests]
            numbers, handle = self._launch(self._left[: self._most])
            self._left = self._left[self._most :]
