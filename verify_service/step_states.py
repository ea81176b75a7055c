"""Hidden states that a step has captured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream_kernels.models.boundaries import Bits
from verify_service.feature_rows import FeatureRows
from verify_service.scheduler import ScheduledRows


@dataclass(frozen=True, slots=True, eq=False)
class StepStates:
    """`rows`, bits of bfloat16 [rows of the step, boundaries * hidden_size], in the order of the step's rows.

    `places` names the rows of each item's positions from `first` on: its tokens, then its accepted nodes; as a range
    where they follow one another.
    """

    boundaries: tuple[int, ...]
    rows: Bits
    places: dict[ScheduledRows, range | list[int]]

    def of(self, items: Sequence[ScheduledRows]) -> list[tuple[ScheduledRows, FeatureRows]]:
        """The states of some of the step's items, compacted to committed rows; they last as long as `rows` do."""
        return [(item, FeatureRows(self.boundaries, item.first, self._at(self.places[item]))) for item in items]

    def _at(self, places: range | list[int]) -> Bits:
        if isinstance(places, range):
            return self.rows[places.start : places.stop]
        return self.rows[places]


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
