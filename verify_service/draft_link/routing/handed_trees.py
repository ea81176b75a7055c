"""Trees that a step has taken from the device's queue, accounted for once the host has read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from slipstream.rpc.errors import InvalidArgumentError
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.routing.routed_request import SlotRef

if TYPE_CHECKING:
    from verify_service.draft_link.device_queue import QueuedRound


class Accounted(NamedTuple):
    """What became of a step's trees.

    refs: slots whose tree the step under way does not lack; the others are None. misses: how many were not there in
    time. malformed: attachments that wrote what no drafter may.
    """

    refs: list[SlotRef | None]
    misses: int
    malformed: list[Attachment]


MALFORMED = InvalidArgumentError("malformed tree in the device's queue", field="tree")


def account(refs: Sequence[SlotRef | None], now: float) -> Accounted:
    """Give slots the trees that the step under way has from the device.

    A drafter that has not written its word by the deadline has timed out.
    """
    rounds: dict[int, QueuedRound | None] = {}
    attachments = {ref.attachment.epoch: ref.attachment for ref in refs if ref is not None}
    for epoch, attachment in attachments.items():
        rounds[epoch] = None if attachment.queue is None else attachment.queue.verified()
    left: list[SlotRef | None] = []
    late: set[int] = set()
    malformed: dict[int, Attachment] = {}
    misses = 0
    for ref in refs:
        queued = None if ref is None else rounds.get(ref.attachment.epoch)
        row = None if ref is None or queued is None else queued.row_of(ref.slot.stamp)
        if ref is None or queued is None or row is None:
            left.append(ref)
            continue
        epoch, slot = ref.attachment.epoch, ref.slot
        if queued.taken(row):
            slot.take_handed(queued.read(row))
            left.append(ref)
            continue
        left.append(None)
        if queued.malformed(row):
            malformed[epoch] = ref.attachment
        elif queued.came(row):
            slot.passed_over = True
            slot.stats.unmade += 1
        else:
            misses += 1
            slot.stats.misses += 1
            late.add(epoch)
    for epoch, queued in rounds.items():
        if queued is not None:
            queued.observe(now, in_time=epoch not in late)
            if epoch in late:
                attachments[epoch].circuit_breaker.on_timeout(now, queued.seconds)
            else:
                attachments[epoch].circuit_breaker.on_message(now)
    return Accounted(left, misses, list(malformed.values()))
