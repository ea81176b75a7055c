"""What a step's wait for trees says about each attachment."""

from __future__ import annotations

from collections.abc import Sequence

from verify_service.attachments import Attachment
from verify_service.bindings import Place


def learn(places: Sequence[Place | None], patient: set[int], now: float) -> None:
    """A step in which every tree was there counts as a hit; one that waited in vain counts as a miss.

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
            attachment.patience.miss(now)


def deaf(attachments: Sequence[Attachment], now: float) -> bool:
    """Whether there are attachments, and all of them hang."""
    return bool(attachments) and all(attachment.patience.hangs(now) for attachment in attachments)
