"""Hidden states that a step has captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream_kernels.models.capture_layers import Bits
from verify_service.core.request_state import RequestState
from verify_service.core.scheduled_request import ScheduledRequest
from verify_service.hidden_states.rows import HiddenStateRows, PendingRows

if TYPE_CHECKING:
    from verify_service.hidden_states.device_ring import RingSlice


@dataclass(frozen=True, slots=True, eq=False)
class CapturedStates:
    """`load` returns bits of bfloat16 [rows, `width`], states at `boundaries` side by side; waits for them.

    `places` names the rows of each item's positions from `first` on: its tokens, then its accepted nodes; as a range
    where they follow one another. `spans` have them on the device, once `copied` has returned.
    """

    boundaries: tuple[int, ...]
    load: Callable[[], Bits]
    width: int
    places: dict[ScheduledRequest, range | list[int]]
    spans: Mapping[ScheduledRequest, tuple[RingSlice, ...]] = field(default_factory=dict)
    copied: Callable[[], None] | None = None

    def split(
        self, items: Sequence[ScheduledRequest], is_told: Callable[[ScheduledRequest], bool]
    ) -> tuple[dict[RequestState, tuple[int, int]], list[ScheduledRequest]]:
        """Some of the step's items in two: those with one row that no drafter is told of, and the others.

        Of the former the position and the row, which predicted what was decided.
        """
        single: dict[RequestState, tuple[int, int]] = {}
        others: list[ScheduledRequest] = []
        for item in items:
            rows = self.places[item]
            if len(rows) > 1 or not item.decides or is_told(item):
                others.append(item)
            else:
                single[item.state] = item.first, rows[0]
        return single, others

    def of(self, items: Sequence[ScheduledRequest]) -> list[tuple[ScheduledRequest, HiddenStateRows]]:
        """The states of some of the step's items, compacted to committed rows; they last as long as the step's do."""
        return [(item, self._rows_of(item)) for item in items]

    def _rows_of(self, item: ScheduledRequest) -> HiddenStateRows:
        rows = PendingRows(self.load, self.places[item], self.width)
        return HiddenStateRows(self.boundaries, item.first, rows, self.spans.get(item, ()), self.copied)


def places_of(
    items: Sequence[ScheduledRequest], accepted: dict[ScheduledRequest, tuple[int, ...]]
) -> dict[ScheduledRequest, range | list[int]]:
    """As `CapturedStates.places`, with each item's tokens and then its nodes as rows, one item after the other."""
    places: dict[ScheduledRequest, range | list[int]] = {}
    row = 0
    for item in items:
        end = row + item.count
        nodes = accepted.get(item, ())
        places[item] = [*range(row, end), *(end + node for node in nodes)] if nodes else range(row, end)
        row = end + (item.num_rows - 1 if item.decides else 0)
    return places
