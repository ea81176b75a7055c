"""Everything that decides the outcome of a run of `fit`, and what only decides how it is told."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

CHAIN: Final = 5


@dataclass(frozen=True, slots=True)
class FitSettings:
    """Equal settings, features, device and number of processes give equal weights, bit for bit.

    Defaults are those of EAGLE-3 (arXiv 2503.01840) as it is trained in public; 0 stands for the default of the family
    or the size of the target.
    """

    family: str = "eagle3"
    unroll: int = 0
    """Steps of the training-time test; their losses weigh decay^step."""
    decay: float = 0.8
    argmax_weight: float = 0.0
    """Part of the loss that wants the target's most likely token; the rest wants its distribution."""
    boundaries: tuple[int, ...] = ()
    """Whose states the head reads; empty: those that the family reads by default."""
    draft_vocab: int = 0
    """Tokens that the head scores."""
    freeze_scores: bool = False
    """Whether an EAGLE-3 head scores with the target's own rows, which are not trained."""
    intermediate_size: int = 0
    init: Literal["target", "random"] = "target"
    """Weights to begin with: the target's last layer and scores where shapes fit, or noise."""
    start: Path | None = None
    """Folder of a head of this family and these shapes to begin with, or of a draft model."""
    epochs: int = 10
    max_steps: int = 0
    """Steps at which to stop before the epochs are over; 0: none."""
    row_length: int = 2048
    """Tokens of a row, into which sequences are packed; a longer sequence is cut."""
    batch_rows: int = 8
    """Rows of a step, on all devices together."""
    micro_rows: int = 0
    """Rows computed together on one device; 0: all that it has of a step."""
    graph: bool = True
    """Whether a GPU keeps the work of a step as a graph, in a frame that all steps fit in, where that is possible."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    lr: float = 1e-4
    schedule: Literal["cosine", "constant"] = "cosine"
    warmup: float = 0.015
    """Part of the steps in which the learning rate rises."""
    weight_decay: float = 0.0
    clip: float = 0.5
    """Greatest norm of a step's gradient."""
    chain: int = 0
    """Tokens of the chain whose acceptance is simulated on held-out sequences; 0: CHAIN, or fewer where the family can
    draft no more."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("row_length", 8), ("batch_rows", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least {least}")
        for name in ("unroll", "draft_vocab", "intermediate_size", "max_steps", "micro_rows", "chain"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must not be negative")
        if self.init not in ("target", "random"):
            raise ValueError(f"init is {self.init!r}, must be target or random")
        if self.optimizer not in ("adamw", "muon"):
            raise ValueError(f"optimizer is {self.optimizer!r}, must be adamw or muon")
        if self.schedule not in ("cosine", "constant"):
            raise ValueError(f"schedule is {self.schedule!r}, must be cosine or constant")
        self._check_family()
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay is {self.decay}, must be above 0 and at most 1")
        if not 0 <= self.argmax_weight <= 1:
            raise ValueError(f"argmax_weight is {self.argmax_weight}, must be from 0 to 1")
        if self.lr <= 0 or self.clip <= 0:
            raise ValueError(f"lr is {self.lr} and clip {self.clip}, both must be above 0")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is {self.warmup}, must be at least 0 and below 1")

    def _check_family(self) -> None:
        if self.freeze_scores and (self.family != "eagle3" or self.init == "random"):
            raise ValueError(
                "freeze_scores: only EAGLE-3 heads have rows of their own, which then begin as the target's"
            )
        if self.start is not None and self.family != "draft-model" and self.init == "random":
            raise ValueError("start: a head begins with weights or, by init, with noise, not with both")

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        start = None if self.start is None else str(self.start)
        return asdict(self) | {"boundaries": list(self.boundaries), "start": start}


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What does not change a weight. Numbers count steps; 0: never, but at the end."""

    log_every: int = 10
    evaluate_every: int = 0
    checkpoint_every: int = 200
    progress: bool = True
    check_labels: bool = True
