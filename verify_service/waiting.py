"""What a step's wait for trees says about each attachment."""

from __future__ import annotations

from collections.abc import Sequence

from verify_service.attachments import Attachment
from verify_service.bindings import Place
from verify_service.deadline import Deadline

TURN_SECONDS = 0.0002
"""How long a step sleeps at one ring while trees may come from elsewhere too."""


def patience_for(places: Sequence[Place | None], deadline: Deadline, now: float) -> dict[int, float]:
    """How many seconds a step may wait for each attachment, by epoch: for those alone that it waits for at all."""
    gains: dict[Attachment, float] = {}
    for place in places:
        if place is not None:
            gains[place.attachment] = max(gains.get(place.attachment, 0.0), place.slot.tally.gain)
    longest = {attachment: deadline.seconds_for(gain) for attachment, gain in gains.items()}
    return {
        attachment.epoch: seconds for attachment, seconds in longest.items() if attachment.patience.waits(now, seconds)
    }


def learn(places: Sequence[Place | None], patient: set[int], now: float, waited: float = 0.0) -> None:
    """A step in which every tree was there counts as a hit; one that waited in vain, for so many seconds, as a miss.

    Of an attachment that is not waited for, so does one for which it had made any trees ahead, or none at all.
    """
    complete: dict[int, bool] = {}
    supplied: dict[int, bool] = {}
    attachments: dict[int, Attachment] = {}
    for place in places:
        if place is not None and not place.attachment.ended:
            epoch, slot = place.attachment.epoch, place.slot
            attachments[epoch] = place.attachment
            complete[epoch] = complete.get(epoch, True) and not slot.awaited
            supplied[epoch] = supplied.get(epoch, False) or slot.supplied or slot.waits
            slot.count()
    for epoch, attachment in attachments.items():
        if complete[epoch] and supplied[epoch]:
            attachment.patience.hit()
        elif epoch in patient:
            attachment.patience.miss(now, waited)
        else:
            attachment.patience.skip()


def deaf(attachments: Sequence[Attachment], behind: Sequence[Attachment], now: float) -> bool:
    """Whether all attachments hang that have requests, or all there are where none has any.

    One that has nothing but requests to take over, of which `behind` has it once for each, counts while it is heard.
    """
    told = [each for each in attachments if each.slots.busy and not _unheard(each, behind, now)] or attachments
    return bool(told) and all(attachment.patience.hangs(now) for attachment in told)


def _unheard(attachment: Attachment, behind: Sequence[Attachment], now: float) -> bool:
    return attachment.patience.unheard(now) and behind.count(attachment) == attachment.slots.taken_count
