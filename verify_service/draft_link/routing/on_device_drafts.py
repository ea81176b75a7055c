"""Proposers that draft behind a step under way, before the host knows what that decides."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from slipstream_kernels.device_tree import DeviceTree
from slipstream_kernels.draft_protocol.follow import Follow
from slipstream_kernels.draft_protocol.proposer_host import DevicePassResult, EnqueuedRound, EnqueueRequest
from verify_service.core.draft_source import EnqueuedDrafts, EnqueuedRequest
from verify_service.core.request import RequestKey
from verify_service.core.step_result import DeviceStepResult
from verify_service.draft_link.attachment import Attachment
from verify_service.draft_link.routing.routed_request import SlotRef
from verify_service.draft_link.slots.slot import Slot

if TYPE_CHECKING:
    import torch


_log = logging.getLogger(__name__)


def follow(
    rows: Sequence[EnqueuedRequest],
    refs: Iterable[SlotRef],
    outcome: DeviceStepResult,
    waits: Mapping[int, float] = MappingProxyType({}),
    now: float = 0.0,
) -> EnqueuedDrafts:
    """Ask those among the drafters that can, each for the trees of its requests.

    waits: for how many seconds a step may wait, by epoch; drafters of other processes without any are not asked.
    now: time.monotonic(), in seconds.
    """
    by_key = {row.key: row for row in rows}
    asked: dict[Attachment, tuple[torch.Tensor, list[EnqueueRequest], list[Slot]]] = {}
    for ref in refs:
        attachment, slot = ref.attachment, ref.slot
        row = None if slot.key is None else by_key.get(slot.key)
        if row is None or slot.max_nodes <= 1 or not would_follow(ref, waits, now):
            continue
        for each in row.spans:
            if each.reader is slot.feed and each.first == slot.feed.sent_until:
                told = asked.get(attachment)
                if told is None:
                    told = asked[attachment] = each.target, [], []
                limits = slot.max_nodes, slot.max_depth
                told[1].append(EnqueueRequest(slot.stamp, row.row, row.most, each.offset, *limits))
                told[2].append(slot)
                break
    keys = {row.row: row.key for row in rows}
    read: list[torch.cuda.Event] = []
    trees: dict[RequestKey, DeviceTree] = {}
    for attachment, (states, values, slots) in asked.items():
        result = DevicePassResult(outcome.results, states, outcome.ready)
        try:
            enqueued = _enqueue(attachment, values, result, waits.get(attachment.epoch, 0.0))
        except Exception:  # noqa: BLE001 - the others' events must be waited for all the same
            _log.exception("the proposers of epoch %d did not draft behind a step", attachment.epoch)
            continue
        read += enqueued.read
        for value, slot in zip(values, slots, strict=True):
            tree = enqueued.trees.get(value.row)
            fits = tree is not None and tree.most_nodes < value.max_nodes and tree.most_depth <= value.max_depth
            slot.promised = tree if fits and attachment.queue is None else None
            if tree is not None and fits:
                trees[keys[value.row]] = tree
    return EnqueuedDrafts(read, trees)


def would_follow(ref: SlotRef, waits: Mapping[int, float], now: float) -> bool:
    """Whether a slot's drafter can draft behind a step, and is relied on for that; `waits` and `now` as of `follow`."""
    attachment, slot = ref.attachment, ref.slot
    if not attachment.may_follow(slot):
        return False
    queue = attachment.queue
    return queue is None or (attachment.epoch in waits and not slot.passed_over and queue.allows(now))


def _enqueue(
    attachment: Attachment, values: Sequence[EnqueueRequest], outcome: DevicePassResult, seconds: float
) -> EnqueuedRound:
    if attachment.queue is None:
        assert attachment.follow is not None
        return attachment.follow(values, outcome, seconds)

    def tell(record: Follow) -> bool:
        return attachment.outbox.put((record,))

    enqueued = attachment.queue.follow(values, outcome, seconds, tell)
    attachment.send(0)
    return enqueued
