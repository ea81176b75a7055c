"""Feeds slots with hidden states: in ascending positions without holes, from steps and from what is kept of them."""

from __future__ import annotations

from slipstream_kernels.draft_protocol.records import Extend
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.slots.slot import Slot
from verify_service.hidden_states.rows import HiddenStateHistory, HiddenStateRows

RECORD_BYTES = 1 << 18
"""States of one Extend, at most; but one row always. Copies of so many bytes stay within a processor's cache."""
MESSAGE_BYTES = 1 << 22
"""States that one step's message carries beside its tokens; what is more follows in messages of its own."""
STEP_BYTES = 1 << 22
ALONE_BYTES = 1 << 24


def step_bytes(running: int) -> int:
    """States that follow in such messages after one step, where so many requests run.

    The loop is held up no longer than it takes to copy them; a request alone gains more by its trees than it loses.
    """
    return max(STEP_BYTES, ALONE_BYTES // max(1, running))


def reachable(history: HiddenStateHistory | None, end: int) -> int:
    """The first of the positions from which on all states before `end` are kept; `end` where none is."""
    return end if history is None else history.reach(end)


def send_states(
    attachment: Attachment,
    slot: Slot,
    history: HiddenStateHistory | None,
    fresh: HiddenStateRows,
    *,
    catch_up: bool = True,
) -> bool:
    """Send the states before `fresh.end` that a slot lacks, as far as there is room, and time; the next step goes on.

    Those before `fresh` are read and copied by the host, and wait unless the slot is to `catch_up`. False where some of
    them are neither in `fresh` nor kept any more.
    """
    feed = slot.feed
    row_bytes = 2 * len(feed.boundaries) * fresh.hidden_size
    most = max(1, RECORD_BYTES // row_bytes)
    records = 0
    while feed.sent_until < fresh.end:
        first = feed.sent_until
        ring_slice = fresh.ring_slice_for(feed) if first >= fresh.first else None
        if ring_slice is not None and attachment.outbox.has_room(0):
            attachment.outbox.put((Extend(slot.stamp, first, device_rows=ring_slice.rows(first, fresh.end)),))
            ring_slice.reservation.queued += 1
            feed.sent_until = fresh.end
            records += 1
            break
        source = fresh if first >= fresh.first else history
        if source is history and not catch_up:
            break
        end = min(first + most, fresh.end if source is fresh else fresh.first)
        size = (end - first) * row_bytes
        if attachment.state_room <= 0 or not attachment.outbox.has_room(size):
            break
        attachment.state_room -= size
        part = fresh.slice(first, end) if source is fresh else history.read(first, end) if history else None
        if part is None or part.first > first or not part.has(feed.boundaries):
            return False
        own = source is history and part.boundaries == feed.boundaries  # what is read there is a copy
        attachment.outbox.put((Extend(slot.stamp, first, part.rows if own else part.select(feed.boundaries)),))
        feed.sent_until = end
        records += 1
    if records:
        attachment.send(records)
    return True
