"""A proposer whose draft service is not attached before a file is there: `NAME=support.late_proposer:create:FILE`."""

from __future__ import annotations

import time
from pathlib import Path

from draft_service.proposers.base import Proposer, ProposerOptions, Target
from support.proposers import RandomTreeProposer


class LateProposer(RandomTreeProposer):
    """Makes itself fit the target for as long as the file is missing."""

    def __init__(self, options: ProposerOptions) -> None:
        super().__init__(options)
        self._file = Path(options.argument)

    def bind(self, target: Target) -> None:
        while not self._file.exists():
            time.sleep(0.02)
        super().bind(target)


def create(options: ProposerOptions) -> Proposer:
    return LateProposer(options)
