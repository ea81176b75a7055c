"""Proposers of this process that draft behind a step under way, before the host knows what that decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from slipstream_kernels.exchange.in_process import FollowValue, PassOutcome
from verify_service.attachments import Attachment
from verify_service.bindings import Place
from verify_service.device_ring import Span
from verify_service.request import RequestKey
from verify_service.step_engine import Outcome

if TYPE_CHECKING:
    import torch


Reads = Sequence["torch.cuda.Event"]
"""Once all have come, nothing of an outcome is read any more."""


class FollowedRows(NamedTuple):
    """A request that a step decides, which adds `most` tokens at most: its row of the results, where its states go."""

    key: RequestKey
    row: int
    most: int
    spans: Sequence[Span]


class Follower(Protocol):
    """A tree source that can have trees begun before a step is decided. Used by the loop's thread; nothing waits."""

    def follow(self, rows: Sequence[FollowedRows], outcome: Outcome) -> Reads:
        """To be called right after the launch."""
        ...

    def take_unread(self, unread: bool) -> None:
        """Whether trees may be `DeviceTree`s from now on, which are not waited for."""
        ...

    def waited(self, keys: Sequence[RequestKey], seconds: float) -> None:
        """A step has waited so long for such trees of these requests, after its launch, and has them."""
        ...


def follow(rows: Sequence[FollowedRows], places: Iterable[Place], outcome: Outcome) -> list[torch.cuda.Event]:
    """Ask those among the drafters that can, each for the trees of its requests."""
    by_key = {row.key: row for row in rows}
    asked: dict[Attachment, tuple[torch.Tensor, list[FollowValue]]] = {}
    for place in places:
        attachment, slot = place.attachment, place.slot
        row = None if slot.key is None else by_key.get(slot.key)
        if attachment.follow is None or row is None or slot.max_nodes <= 1:
            continue
        span = next((each for each in row.spans if each.serves(slot) and each.first == slot.featured), None)
        if span is not None:
            value = FollowValue(slot.stamp, row.row, row.most, span.place, slot.max_nodes, slot.max_depth)
            asked.setdefault(attachment, (span.target, []))[1].append(value)
    events: list[torch.cuda.Event] = []
    for attachment, (states, values) in asked.items():
        assert attachment.follow is not None
        events += attachment.follow(values, PassOutcome(outcome.results, states, outcome.ready))
    return events
