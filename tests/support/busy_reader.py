"""A proposer that exists only in tests: its draft service reads the ring of verify's GPU without end.

    --proposer checker=support.busy_reader:create:FOLDER

Otherwise it is a `StateChecker`. Each copy out of the ring is made many times over, so that a service that is killed
has kernels under way that read verify's memory.
"""

from __future__ import annotations

import torch

from draft_service.proposers.base import ProposerOptions
from draft_service.verify_link.hidden_state_ring import HiddenStateRing
from support.state_checker import StateChecker

TIMES = 2000


def create(options: ProposerOptions) -> StateChecker:
    """Changes this whole process."""
    once = HiddenStateRing._copy

    def often(states: HiddenStateRing, start: int, end: int) -> torch.Tensor:
        for _ in range(TIMES if options.device != "cpu" else 2):
            copy = once(states, start, end)
        return copy

    HiddenStateRing._copy = often  # type: ignore[method-assign] # the place where the ring is read
    return StateChecker(options)
