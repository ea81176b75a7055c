"""What the boundary benchmark's proposer is to do: a file that the proposer is named with on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PROPOSER = "oracle"
"""What requests call it."""
FACTORY = "benchmarks.boundary.proposer:create"


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """`size` bytes are read for each tree, in `depth` passes; the tree has `rows` rows, its root included.

    `right` of its levels carry the target's own continuation, which is in the file `continuations`. States are asked
    for at `boundaries`, each of `hidden_size` numbers. What a service with this plan did is in the file `report` once
    it has ended.
    """

    size: int
    depth: int
    rows: int
    right: int
    boundaries: tuple[int, ...]
    hidden_size: int
    continuations: str
    report: str

    def write(self, path: Path) -> str:
        """Write it; returns the proposer's specification."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return f"{PROPOSER}={FACTORY}:{path}"

    @classmethod
    def read(cls, path: Path) -> DraftPlan:
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(boundaries=tuple(content.pop("boundaries")), **content)


@dataclass(frozen=True, slots=True)
class DraftReport:
    """What a service did. `trees`: begin and end of each call for trees and seconds of it on the GPU. Times are
    time.perf_counter(), one clock for a host.

    `rows` of hidden states came, `on_device` of them on the GPU. `size` bytes are what is really read for a tree.
    """

    trees: Sequence[tuple[float, float, float]]
    rows: int
    on_device: int
    size: int

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> DraftReport:
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(trees=tuple(tuple(each) for each in content.pop("trees")), **content)
