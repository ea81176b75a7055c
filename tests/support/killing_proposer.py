"""A proposer for the verify service's own process that ends it as a fault in native code would: at once, by a signal.

`NAME=support.killing_proposer:create`: whoever asks for it dies before the request's first step is over.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from draft_service.proposers.base import DraftRequest, Opening, Proposer, ProposerOptions
from slipstream_kernels.token_tree import TokenTree


class KillingProposer(Proposer):
    """Ends its process when it is told of a request."""

    max_nodes, max_depth = 8, 4

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, session: int, opening: Opening) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        """Never comes."""

    def close(self, session: int) -> None:
        """Never comes."""

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return [None for _ in requests]


def create(options: ProposerOptions) -> KillingProposer:
    return KillingProposer(options.name)
