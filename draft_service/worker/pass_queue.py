"""Passes of the target in another process, behind which rounds are queued on the device."""

from __future__ import annotations

from typing import Protocol

from slipstream_kernels.draft_protocol.follow import Follow
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound


class PassQueue(Protocol):
    """The drafter's end of a queue on the device. Used on the worker's thread."""

    def newest(self) -> Follow | None:
        """The pass that the source has told of last, once."""
        ...

    def outcome(self, record: Follow) -> DevicePassResult:
        """What the pass decides, once it has or the wait for it is over; row i is that of the record's i-th value."""
        ...

    def publish(self, record: Follow, enqueued: EnqueuedRound) -> None:
        """Hand verify the trees of the round behind the pass. There are no others, also where there are none."""
        ...
