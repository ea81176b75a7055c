"""How long a step waits for trees, how it waits, and what that says about each attachment."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from threading import Condition

from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.routing.routed_request import SlotRef

_log = logging.getLogger(__name__)

MANY_LATE = 32
"""Trees that came too late before the log says that all do."""
TURN_SECONDS = 0.0002
"""How long a step sleeps at one ring while trees may come from elsewhere too."""


def max_waits(
    refs: Sequence[SlotRef | None], deadline: Callable[[float, float | None], float], now: float
) -> dict[int, float]:
    """How many seconds a step may wait for each attachment, by epoch: for those alone that it waits for at all.

    deadline: seconds for trees that bring so many tokens in the mean, and usually take so many seconds.
    """
    by_proposer = {id(ref.slot.stats): (ref.attachment, ref.slot.stats) for ref in refs if ref is not None}
    longest: dict[Attachment, float] = {}
    for attachment, stats in by_proposer.values():
        seconds = deadline(stats.mean_accepted, stats.answers.usual)
        longest[attachment] = max(longest.get(attachment, 0.0), seconds)
    return {
        attachment.epoch: seconds
        for attachment, seconds in longest.items()
        if attachment.circuit_breaker.allows_wait(now, seconds)
    }


def wait_for_replies(lock: Condition, awaited: Sequence[SlotRef], seconds: float) -> bool:
    """Let the link's lock go until a tree of these may have come, or so long.

    Return whether a transport was polled, from which what came has yet to be taken in.
    """
    attachments = {ref.attachment.epoch: ref.attachment for ref in awaited}
    polled = [each.transport for each in attachments.values() if each.transport and each.transport.polled]
    if not polled:
        lock.wait(seconds)
        return False
    first, position = polled[0], polled[0].position
    lock.release()
    try:
        first.wait(seconds if len(attachments) == 1 else min(seconds, TURN_SECONDS), position)
    finally:
        lock.acquire()
    return True


def record_waits(refs: Sequence[SlotRef | None], waited_for: set[int], now: float, waited: float = 0.0) -> None:
    """A step in which every tree was there counts as a hit; one that waited in vain, for so many seconds, as a miss."""
    complete: dict[int, bool] = {}
    attachments: dict[int, Attachment] = {}
    for ref in refs:
        if ref is not None and not ref.attachment.ended:
            epoch, slot = ref.attachment.epoch, ref.slot
            attachments[epoch] = ref.attachment
            complete[epoch] = complete.get(epoch, True) and not slot.awaited
            slot.count_hits()
    for epoch, attachment in attachments.items():
        if complete[epoch]:
            attachment.circuit_breaker.on_success()
        elif epoch in waited_for:
            attachment.circuit_breaker.on_timeout(now, waited)
            _tell_of_late_trees(attachment)
        else:
            attachment.circuit_breaker.on_skip()


def _tell_of_late_trees(attachment: Attachment) -> None:
    """Log once that no step has ever had a tree of an attachment, as all come too late."""
    late = sum(stats.late for stats in attachment.stats)
    if attachment.told_of_late or late < MANY_LATE or any(stats.hits for stats in attachment.stats):
        return
    attachment.told_of_late = True
    usual = max((stats.answers.usual or 0.0 for stats in attachment.stats), default=0.0)
    _log.warning(
        "no step had a tree of epoch %d: %d came too late, %.0f ms after they were asked for; see --draft-deadline-ms",
        attachment.epoch, late, 1000 * usual,
    )  # fmt: skip


def all_unresponsive(attachments: Sequence[Attachment], behind: Sequence[Attachment], now: float) -> bool:
    """Whether all attachments with requests are unresponsive; where none has any, whether all attachments are.

    One that has nothing but requests to take over, of which `behind` has it once for each, counts while it is heard.
    """
    told = [
        each for each in attachments if each.slots.busy and not _silent_and_catching_up(each, behind, now)
    ] or attachments
    return bool(told) and all(attachment.circuit_breaker.is_unresponsive(now) for attachment in told)


def _silent_and_catching_up(attachment: Attachment, behind: Sequence[Attachment], now: float) -> bool:
    return attachment.circuit_breaker.is_silent(now) and behind.count(attachment) == attachment.slots.taken_count
