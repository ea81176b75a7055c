"""The log of a run: wall-clock phases and loss curves, printed as they come and kept as JSON."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor


@dataclass(slots=True)
class Progress:
    """Collects what a run reports. Times are seconds since the run began."""

    began: float = field(default_factory=time.perf_counter)
    phases: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[list[float]]] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def say(self, text: str) -> None:
        print(f"[{self.elapsed:6.1f} s] {text}", flush=True)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase."""
        start = self.elapsed
        self.say(f"{name} begins")
        yield
        self.phases[name] = round(self.elapsed - start, 2)
        self.say(f"{name} took {self.phases[name]:.1f} s")

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        report = {"seconds": round(self.elapsed, 1), "phases": self.phases, "curves": self.curves, **self.results}
        path.write_text(json.dumps(report, indent=1) + "\n")


@dataclass(slots=True)
class Curve:
    """A training loop's loss curve; values stay on the device until `every` steps have passed."""

    progress: Progress
    name: str
    tokens_a_step: int
    every: int = 100
    held: list[Tensor] = field(default_factory=list)
    last: float = field(default_factory=time.perf_counter)

    def add(self, step: int, value: Tensor) -> None:
        self.held.append(value)
        if len(self.held) < self.every:
            return
        mean = sum(float(value) for value in self.held) / len(self.held)
        now = time.perf_counter()
        rate = self.tokens_a_step * len(self.held) / (now - self.last)
        self.progress.curves.setdefault(self.name, []).append([step + 1, round(mean, 4)])
        self.progress.say(f"{self.name} step {step + 1}: {mean:.4f} ({rate / 1e6:.2f} M tokens/s)")
        self.held.clear()
        self.last = now
