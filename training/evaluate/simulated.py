"""What training supposed a head to be worth, to be held against the engine's figure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Any, Final

METRICS: Final = "metrics.json"


@dataclass(frozen=True, slots=True)
class Simulated:
    """`acceptance_length` includes the bonus token, as everywhere.

    `accuracy`: entry k is how often the k + 1st token of a chain was right where those before it were. `curves`: series
    of training by name, each as long as `step`.
    """

    acceptance_length: float
    accuracy: tuple[float, ...] = ()
    curves: dict[str, list[float]] = field(default_factory=dict)

    @property
    def by_position(self) -> list[float]:
        """Entry k: how often at least k + 1 tokens of a chain were right."""
        return list(accumulate(self.accuracy, mul))

    def to_depth(self, depth: int) -> float:
        """Acceptance length of chains of that depth; that of the file where it does not say more."""
        if not self.accuracy or depth < 1:
            return self.acceptance_length
        return 1.0 + sum(self.by_position[:depth])


def read_simulated(path: Path) -> Simulated:
    """What a run's folder, or its `metrics.json`, tells. ValueError, naming the field, where it cannot be read.

    `simulated_acceptance_length` must be there, `accuracy_by_step` and `curves` may be.
    """
    file = path / METRICS if path.is_dir() else path
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from error
    length = content.get("simulated_acceptance_length") if isinstance(content, dict) else None
    if not isinstance(length, int | float) or length < 1:
        raise ValueError(f"{file}: simulated_acceptance_length is no number from 1 on")
    accuracy = content.get("accuracy_by_step", [])
    if not _are_numbers(accuracy) or any(not 0 <= value <= 1 for value in accuracy):
        raise ValueError(f"{file}: accuracy_by_step is no list of numbers from 0 to 1")
    curves = content.get("curves", {})
    if not isinstance(curves, dict) or not all(_are_numbers(values) for values in curves.values()):
        raise ValueError(f"{file}: curves are no lists of numbers")
    if len({len(values) for values in curves.values()}) > 1 or (curves and "step" not in curves):
        raise ValueError(f"{file}: curves need a step, and as many values each")
    return Simulated(float(length), tuple(accuracy), curves)


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, int | float) for value in values)
