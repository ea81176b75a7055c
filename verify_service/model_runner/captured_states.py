"""Hidden states that a step has captured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream_kernels.models.capture_layers import Bits
from verify_service.core.scheduled_request import ScheduledRows
from verify_service.hidden_states.rows import FeatureRows, LateRows

if TYPE_CHECKING:
    from verify_service.hidden_states.device_ring import Span


@dataclass(frozen=True, slots=True, eq=False)
class StepStates:
    """`load` returns bits of bfloat16 [rows, `width`], states at `boundaries` side by side; waits for them.

    `places` names the rows of each item's positions from `first` on: its tokens, then its accepted nodes; as a range
    where they follow one another. `spans` have them on the device, once `copied` has returned.
    """

    boundaries: tuple[int, ...]
    load: Callable[[], Bits]
    width: int
    places: dict[ScheduledRows, range | list[int]]
    spans: Mapping[ScheduledRows, tuple[Span, ...]] = field(default_factory=dict)
    copied: Callable[[], None] | None = None

    def of(self, items: Sequence[ScheduledRows]) -> list[tuple[ScheduledRows, FeatureRows]]:
        """The states of some of the step's items, compacted to committed rows; they last as long as the step's do."""
        return [(item, self._rows_of(item)) for item in items]

    def _rows_of(self, item: ScheduledRows) -> FeatureRows:
        rows = LateRows(self.load, self.places[item], self.width)
        return FeatureRows(self.boundaries, item.first, rows, self.spans.get(item, ()), self.copied)


def places_of(
    items: Sequence[ScheduledRows], accepted: dict[ScheduledRows, tuple[int, ...]]
) -> dict[ScheduledRows, range | list[int]]:
    """As `StepStates.places`, where each item's rows are its tokens and then its nodes, one item after the other."""
    places: dict[ScheduledRows, range | list[int]] = {}
    row = 0
    for item in items:
        end = row + item.count
        nodes = accepted.get(item, ())
        places[item] = [*range(row, end), *(end + node for node in nodes)] if nodes else range(row, end)
        row = end + (item.num_rows - 1 if item.decides else 0)
    return places
