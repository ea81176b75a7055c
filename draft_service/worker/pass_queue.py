"""Passes of the target in another process, behind which rounds are queued on the device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from draft_service.worker.device_fault import end_if_device_lost
from draft_service.worker.session_table import SessionTable
from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.follow import Follow
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound, EnqueueRequest

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)


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


def draft_behind(queue: PassQueue, table: SessionTable) -> None:
    """Queue a round behind the newest pass, if there is one, of the sessions that are where it begins."""
    record = queue.newest()
    if record is None:
        return
    try:
        queue.publish(record, followed(table, record.values, queue.outcome(record)))
    except Exception:  # noqa: BLE001 (verify waits for no more than its deadline)
        _log.exception("no trees are handed over behind a pass")
        end_if_device_lost()


def followed(table: SessionTable, values: Sequence[EnqueueRequest], outcome: DevicePassResult) -> EnqueuedRound:
    """What the proposers queue behind a pass."""
    read: list[torch.cuda.Event] = []
    trees: dict[int, DeviceTree] = {}
    for proposer, requests in table.followed(values).items():
        try:
            enqueued = proposer.follow(requests, outcome)
            read += enqueued.read
            trees |= enqueued.trees
        except Exception:  # noqa: BLE001 (a third party's code; it drafts once the pass is decided)
            _log.exception("proposer %s failed to draft behind a pass", proposer.name)
    return EnqueuedRound(read, trees)
