"""Boundaries of a model: the points of its residual stream whose states proposers may ask for.

Boundary b is the stream that enters layer b, so 0 is the embedding and N, the number of layers, what the last layer
leaves behind. N + 1 is that after the final norm: what the head reads. (`hidden_states` of transformers has the same
numbers below N; its last entry is N + 1.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_READ_THE_LAST = ("eagle", "mtp", "medusa", "mlp-speculator")

Bits = npt.NDArray[np.uint16]
"""bfloat16 values, by their bits."""


def boundaries_of(num_layers: int) -> range:
    """All boundaries of a model."""
    return range(num_layers + 2)


def usual_boundaries(kind: str, num_layers: int) -> tuple[int, ...]:
    """Those that a kind of head reads unless its checkpoint says otherwise; none of kinds that read no states.

    Kinds are eagle3 (section 3.1 of arXiv:2503.01840: low, middle and high layers), eagle, mtp, medusa, mlp-speculator.
    """
    if kind == "eagle3":
        return (2, num_layers // 2, num_layers - 3)
    return (boundaries_of(num_layers)[-1],) if kind in _READ_THE_LAST else ()


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """Where a pass leaves the states of some boundaries, rounded to bfloat16 (ties to even)."""

    columns: npt.NDArray[np.int32]
    """[layers + 2], the column at which a boundary's states begin; -1 for those that nobody asked for"""
    rows: Bits
    """[rows, boundaries * hidden_size], side by side in the order asked for"""
    addresses: tuple[int, int] = field(init=False)
    """Of `rows` and of `columns`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "addresses", (self.rows.ctypes.data, self.columns.ctypes.data))

    @classmethod
    def of(cls, boundaries: Sequence[int], rows: int, *, num_layers: int, hidden_size: int) -> Capture:
        """Room for a pass of `rows` rows. Raises ValueError for a boundary that is none, or is asked for twice."""
        known = boundaries_of(num_layers)
        if len(set(boundaries)) != len(boundaries) or not all(boundary in known for boundary in boundaries):
            raise ValueError(f"boundaries are {list(boundaries)}, must be different ones of 0 to {known[-1]}")
        columns = np.full(len(known), -1, np.int32)
        columns[list(boundaries)] = np.arange(len(boundaries), dtype=np.int32) * hidden_size
        return cls(columns, np.empty((rows, len(boundaries) * hidden_size), np.uint16))

    def with_rows(self, rows: int) -> Capture:
        """Room for other passes, of the same boundaries, of up to so many rows."""
        return Capture(self.columns, np.empty((rows, self.rows.shape[1]), np.uint16))
