"""The bounded queue of records to one draft service: the writer never waits, a reader too slow loses its feed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from slipstream_kernels.draft_protocol.records import Commit, Extend, Gap
from verify_service.draft_link.records import Command

RECORD_COST = 16
"""What a record costs beside its token ids, in token ids."""


def cost_of(record: Command) -> int:
    """Size of a record, counted in token ids."""
    if isinstance(record, Commit):
        size, rows = RECORD_COST + len(record.token_ids), record.hidden_states
        return size if rows is None else size + cost_of_states(rows.nbytes)
    cost = RECORD_COST + (0 if isinstance(record, Gap) else len(getattr(record, "token_ids", ())))
    states = record.hidden_states if isinstance(record, Extend) else None
    return cost if states is None else cost + cost_of_states(states.nbytes)


def cost_of_states(size: int) -> int:
    """What so many bytes of hidden states cost, in token ids."""
    return size // 4


class SendQueue:
    """Batches of records in order; one batch becomes one message.

    `limit` bounds the sum of their costs. One record that is larger than the limit still fits an empty queue, so
    that a drafter can always be brought up to date. Not thread-safe: the link's lock guards it.
    """

    __slots__ = ("_batches", "_cost", "_gaps", "_limit")

    def __init__(self, limit: int) -> None:
        self._batches: deque[tuple[int, tuple[Command, ...]]] = deque()
        self._gaps: dict[int, Gap] = {}
        self._cost = 0
        self._limit = limit

    def put(self, records: Sequence[Command]) -> bool:
        """Queue a batch; False if it does not fit, and then nothing of it is queued."""
        cost = sum(map(cost_of, records))
        if self._batches and self._cost + cost > self._limit:
            return False
        self._push(cost, records)
        return True

    def has_room(self, state_bytes: int) -> bool:
        """Whether a record of so many bytes of states leaves half of the queue for others, or meets an empty one."""
        cost = RECORD_COST + cost_of_states(state_bytes)
        return not self._batches or self._cost + cost <= self._limit // 2

    def put_always(self, record: Command) -> None:
        """Queue a record whatever the limit. Only for records that are paired with one that took its place by `put`."""
        self._push(cost_of(record), (record,))

    def put_gap(self, gap: Gap) -> None:
        """Remember that records of a slot were dropped; the newest gap of a slot is sent once the queue has emptied."""
        earlier = self._gaps.get(gap.stamp.slot)
        dropped = gap.dropped + (earlier.dropped if earlier and earlier.stamp.generation == gap.stamp.generation else 0)
        self._gaps[gap.stamp.slot] = Gap(gap.stamp, dropped)

    def has_gap(self, slot: int) -> bool:
        """Whether a gap of this slot waits to be sent."""
        return slot in self._gaps

    def forget_gap(self, slot: int) -> None:
        """The slot is over or has been opened again: its gap says nothing any more."""
        self._gaps.pop(slot, None)

    def take(self) -> tuple[Command, ...]:
        """The next batch; empty if there is nothing to send."""
        if self._batches:
            cost, records = self._batches.popleft()
            self._cost -= cost
            return records
        gaps = tuple(self._gaps.values())
        self._gaps.clear()
        return gaps

    def _push(self, cost: int, records: Sequence[Command]) -> None:
        self._batches.append((cost, tuple(records)))
        self._cost += cost
