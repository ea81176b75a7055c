"""The record by which a drafter of another process learns of a pass under way, to queue a round behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream_kernels.draft_protocol.proposer_host import EnqueueRequest


@dataclass(frozen=True, slots=True)
class Follow:
    """A pass that has a number of its own. What it decides for `values[i]` comes in row i of the device's queue.

    There go the trees, too. `row` of each value is i.
    """

    number: int
    values: Sequence[EnqueueRequest]
