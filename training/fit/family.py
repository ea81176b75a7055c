"""What a family of drafters is to the driver, which knows nothing else of it."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from torch import Tensor, nn

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from training.fit.batch import Batch
from training.fit.plan import Survey
from training.fit.settings import FitSettings
from training.fit.target import TargetRows

FAMILIES: Final = {
    "eagle3": "training.fit.families.eagle3:Eagle3",
    "eagle": "training.fit.families.eagle:Eagle1",
    "mtp": "training.fit.families.mtp:Mtp",
    "medusa": "training.fit.families.medusa:Medusa",
    "mlp-speculator": "training.fit.families.mlp_speculator:MlpSpeculator",
    "draft-model": "training.fit.families.draft_model:DraftModel",
}
"""Where the families are."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What a batch has shown.

    loss: the scalar to learn from, this batch's share of its step. losses float32 [steps]: sums over positions of the
    loss at each step, without weights. correct int64 [steps]: positions whose most likely token is the target's.
    hits bool [steps, B, L]: the same by position, False where it does not count. agrees bool [B, L]: the target's most
    likely token after i + 1 is the one that follows in the text.
    """

    loss: Tensor
    losses: Tensor
    correct: Tensor
    hits: Tensor
    agrees: Tensor


class Head(Protocol):
    """A drafter in training; all that has parameters to learn is in `module`."""

    @property
    def module(self) -> nn.Module:
        """Its parameters are float32."""
        ...

    @property
    def repeats(self) -> bool:
        """Whether `look` asks the device for the same work each time, whatever a batch in a frame holds."""
        ...

    def look(self, batch: Batch, counts: Tensor, *, steps: int, noise: int | None) -> Findings:
        """Loss and metrics over `steps` steps.

        counts: float32 [steps], the positions that count at each step in all of what `loss` is a share of. noise: seed
        of whatever is random in learning; None: nothing is, as when serving.
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The weights to serve, under the names of the public layout, in float32; maps in their own types.

        Rows that a server lends from the target may be left out.
        """
        ...

    def config(self) -> dict[str, Any]:
        """The contents of config.json in the public layout."""
        ...

    def describe(self, survey: Survey) -> dict[str, Any]:
        """Figures for the report: parameters, and what its vocabulary covers."""
        ...


class Family(Protocol):
    """Makes heads of one family from settings."""

    def __init__(self, settings: FitSettings) -> None:
        """ValueError, naming the setting, for one that the family cannot follow."""
        ...

    @property
    def steps(self) -> int:
        """Steps that the loss is unrolled over."""
        ...

    @property
    def chain(self) -> int:
        """Tokens of the chain that is simulated on held-out sequences."""
        ...

    def boundaries(self, target: ModelConfig) -> tuple[int, ...]:
        """Whose states training reads, in any order; the source may have more."""
        ...

    def build(self, target: TargetRows, columns: dict[int, slice], survey: Survey) -> Head:
        """A head on the target's device before its first step; `columns`: where each boundary lies in the states."""
        ...


def family_of(settings: FitSettings) -> Family:
    """The family that the settings name. ValueError where there is none."""
    place = FAMILIES.get(settings.family)
    if place is None:
        raise ValueError(f"family is {settings.family!r}, must be one of {', '.join(FAMILIES)}")
    module, _, name = place.partition(":")
    return cast(Family, getattr(importlib.import_module(module), name)(settings))
