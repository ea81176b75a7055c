"""Growth of queries with their position, in layers whose heads do not turn (arXiv 2501.19399)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class QueryTemperature:
    """The factor of a query: 1 + scale * ln(1 + floor((position + 1) / floor))."""

    floor: int
    scale: float

    def table(self, positions: int) -> npt.NDArray[np.float32]:
        """float32 [positions], the factors of the first of them."""
        steps = (np.arange(positions, dtype=np.int64) + 1) // self.floor
        return (np.log1p(steps.astype(np.float64)) * self.scale + 1).astype(np.float32)
