"""Proposers that fail, wait or refuse, each in its own way."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from draft_service.proposers.base import DraftRequest, Opening, Proposer, SessionRefusedError, Target
from draft_service.proposers.ngram.ngram import NgramProposer
from slipstream.rpc.errors import FailedPreconditionError
from slipstream_kernels.token_tree import TokenTree


class Broken(Proposer):
    """Fails in the way its tokens ask for."""

    name, max_nodes, max_depth = "broken", 8, 4

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}

    def open(self, session: int, opening: Opening) -> None:
        self.tokens[session] = list(opening.token_ids)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        self.tokens[session].extend(token_ids)

    def close(self, session: int) -> None:
        del self.tokens[session]

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return [self._propose(request.session) for request in requests]

    def _propose(self, session: int) -> TokenTree:
        match self.tokens[session][-1]:
            case 1:
                raise RuntimeError("as asked")
            case 2:
                return TokenTree((7, 7), (1, -1))
            case 3:
                return TokenTree((5000,), (-1,))
            case 4:
                return TokenTree.chain(range(9))
            case 6:
                return TokenTree((7,), (-1,), (float("-inf"),))
            case _:
                return TokenTree.chain((11, 12))


class Slow(Broken):
    """Waits for leave before each answer."""

    name = "slow"

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()
        self.leave = threading.Semaphore(0)

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        self.begun.set()
        assert self.leave.acquire(timeout=60)
        return [TokenTree.chain(self.tokens[request.session][-1:]) for request in requests]


class Unfit(NgramProposer):
    def bind(self, target: Target) -> None:
        raise FailedPreconditionError("another tokenizer")


class OddAtFirst(Broken):
    """Fails while it is being offered, once."""

    name = "odd"

    def __init__(self) -> None:
        super().__init__()
        self.failures = 1

    @property
    def tokenizer_fingerprint(self) -> str:  # type: ignore[override]  # that it is no plain attribute is the point
        self.failures -= 1
        if self.failures >= 0:
            raise RuntimeError("as asked")
        return ""


class Refusing(Broken):
    """Refuses with more words than the wire takes, and with what UTF-8 cannot express."""

    def open(self, session: int, opening: Opening) -> None:
        raise SessionRefusedError("\ud800" * 1000)
