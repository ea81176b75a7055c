"""A proposer that kills the process it runs in once a request asks for it: `killer=support.killer_proposer:create`.

In the verify service (`inproc:`) it makes a request that kills: as a bug would that one prompt sets off.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from draft_service.proposers.base import DraftRequest, Opening, Proposer, ProposerOptions
from slipstream_kernels.token_tree import TokenTree


class KillerProposer(Proposer):
    """Sends SIGKILL to its own process when a session begins."""

    max_nodes, max_depth = 8, 4

    def __init__(self, name: str) -> None:
        self.name = name

    def open(self, session: int, opening: Opening) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def commit(self, session: int, token_ids: Sequence[int]) -> None:
        pass

    def close(self, session: int) -> None:
        pass

    def propose(self, requests: Sequence[DraftRequest]) -> list[TokenTree | None]:
        return [None for _ in requests]


def create(options: ProposerOptions) -> KillerProposer:
    return KillerProposer(options.name)
