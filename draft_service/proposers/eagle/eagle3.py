"""EAGLE-3 proposer: a head that reads states of several of the target's layers (arXiv 2503.01840).

The head fuses low, middle and high states, trained on its own outputs, and scores a vocabulary of its own, which is
mapped to the target's. Trees grow as in `eagle`, with the same parameters. Which boundaries are read follows from
`boundaries=`, else from the checkpoint's config, else it is layers 2, N // 2 and N - 3 of N.
"""

from __future__ import annotations

from draft_service.proposers.base import ProposerOptions
from draft_service.proposers.eagle.base import EagleBase
from draft_service.proposers.eagle.cpu import create_for


def create(options: ProposerOptions) -> EagleBase:
    """Factory. The argument is `DIR[:KEY=VALUE...]`."""
    return create_for("eagle3", options)
