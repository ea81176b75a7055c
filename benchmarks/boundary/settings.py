"""What the boundary benchmark compares: places of the drafter, and there transports, modes and proposers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.inflate.shape import Shape
from slipstream_kernels.draft_protocol.proposer_host import IN_PROCESS

PLAIN = "plain"
"""Mode of the rows without a drafter."""
LOCKSTEP = "lockstep"
BEHIND = "behind"
"""An EAGLE-3 head that drafts behind the pass; in lockstep where it cannot."""
MODES = (LOCKSTEP, BEHIND)
CUDA_IPC = "cuda_ipc"
SHARED = (CUDA_IPC, "shm")
TRANSPORTS = (IN_PROCESS, *SHARED, "grpc")

PLACES = {
    "cpu": "one CPU",
    "slicing": "one GPU, time slicing",
    "mps": "one GPU, MPS",
    "second": "a second GPU",
}
"""Where the drafter's process computes, and how it shares what verify computes on."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way for trees to be made and to come; `rows` of a tree, its root included, `right` levels of it right.

    Without `spins` both ends sleep as soon as they wait; with it they do what they do by themselves.
    """

    transport: str
    mode: str
    states: bool
    rows: int
    depth: int
    right: int
    spins: bool = True

    @property
    def name(self) -> str:
        """Unique within a place; fit for file names."""
        kind = f"{'states' if self.states else 'bare'}-{'awake' if self.spins else 'asleep'}"
        return f"{self.transport}-{self.mode}-{kind}-{self.rows}"

    @property
    def own_process(self) -> bool:
        """Whether the drafter is another process."""
        return self.transport != IN_PROCESS

    def baseline(self) -> Setting:
        """The same proposer in verify's process."""
        return Setting(IN_PROCESS, self.mode, self.states, self.rows, self.depth, self.right)


@dataclass(frozen=True, slots=True)
class Measured:
    """All that a place needs to know to be measured by a process of its own. Devices are torch's names."""

    place: str
    device: str
    draft_device: str
    settings: tuple[Setting, ...]
    weights: str
    model: str
    shape: Shape
    engine_mode: str
    size: int
    requests: int
    rounds: int
    settle: int
    deadline: float
    continuations: str
    folder: str
    attach_seconds: float
    head: str = ""
    """EAGLE-3 head of settings behind, as on the command line: DIR[:OPTIONS]."""
    tokens: int = field(init=False)
    """New tokens that a request may have to live through both measurements of any setting."""

    def __post_init__(self) -> None:
        most = max(setting.depth if setting.mode == BEHIND else setting.right for setting in self.settings) + 1
        object.__setattr__(self, "tokens", most * (2 * (self.settle + self.rounds) + 64))

    def write(self, path: Path) -> None:
        content = asdict(self)
        del content["tokens"]
        path.write_text(json.dumps(content), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Measured:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        settings = tuple(Setting(**each) for each in content.pop("settings"))
        return cls(settings=settings, shape=Shape(**content.pop("shape")), **content)


def settings_of(
    transports: tuple[str, ...],
    modes: tuple[str, ...],
    *,
    states: bool,
    tree: tuple[int, int],
    right: int,
    asleep: bool = False,
) -> tuple[Setting, ...]:
    """Every transport in every mode, with trees of so many rows and levels.

    Through the GPU's memory travel states alone, so that proposers without any take another way. Behind the pass
    nothing else is of use. `asleep` adds rounds in lockstep through shared memory at whose ends nobody spins.
    """
    rows, depth = tree
    found: dict[Setting, None] = {}
    for mode in modes:
        has_states = states or mode == BEHIND
        fitting = [name for name in transports if has_states or name != CUDA_IPC]
        if mode == BEHIND:
            fitting = [name for name in transports if name in (IN_PROCESS, CUDA_IPC)]
        wanted = [Setting(transport, mode, has_states, rows, depth, min(right, depth)) for transport in fitting]
        beside = [setting.baseline() for setting in wanted if not setting.own_process]
        apart = [setting for setting in wanted if setting.own_process]
        if asleep and mode == LOCKSTEP:
            apart += [replace(setting, spins=False) for setting in apart if setting.transport in SHARED]
        found |= dict.fromkeys(beside + apart)
    return tuple(found)
