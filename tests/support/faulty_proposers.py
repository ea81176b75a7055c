"""Proposers that break every promise, each in one way: `NAME=support.faulty_proposers:create:KIND`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from draft_service.proposers.base import DraftRequest, Opening, Proposer, ProposerOptions
from slipstream_kernels.token_tree import TokenTree

KINDS = (
    "raises in open",
    "raises in commit",
    "raises in close",
    "raises in propose",
    "raises in advance",
    "no list",
    "too few",
    "no tree",
    "malformed",
    "too large",
    "unknown token",
)
HANGS = "hangs"


class FaultyProposer(Proposer):
    """Guesses that the last token comes again, but for what `kind` says."""

    max_nodes, max_depth = 8, 4

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self._kind = kind
        self._last: dict[int, int] = {}

    def open(self, session: int, opening: Opening) -> None:
        self._raise_in("open")
        self._last[session] = opening.token_ids[-1]

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self._raise_in("commit")
        self._last[session] = token_ids[-1]

    def close(self, session: int) -> None:
        self._last.pop(session, None)
        self._raise_in("close")

    def advance(self) -> bool:
        self._raise_in("advance")
        return False

    def propose(self, requests: Sequence[DraftRequest]) -> Any:
        self._raise_in("propose")
        if self._kind == HANGS:
            threading.Event().wait()
        if self._kind == "no list":
            return 7
        trees = [self._tree(request) for request in requests]
        return trees[1:] if self._kind == "too few" else trees

    def _tree(self, request: DraftRequest) -> Any:
        last = self._last[request.session]
        match self._kind:
            case "no tree":
                return "a tree"
            case "malformed":
                return TokenTree((last, last), (1, 0))
            case "too large":
                return TokenTree.chain([last] * 64)
            case "unknown token":
                return TokenTree.chain([1 << 31])
        return TokenTree.chain([last] * min(request.max_nodes - 1, request.max_depth))

    def _raise_in(self, method: str) -> None:
        if self._kind == f"raises in {method}":
            raise RuntimeError("as asked")


def create(options: ProposerOptions) -> FaultyProposer:
    return FaultyProposer(options.name, options.argument)
