"""What families share that need no states of the target but its last, behind the final norm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from training.fit.family import Head
from training.fit.plan import Survey
from training.fit.settings import CHAIN, FitSettings
from training.fit.target import TargetRows


class LastStateFamily(ABC):
    """They score all tokens of the target, so there is no draft vocabulary to choose either."""

    usual_steps: ClassVar[int]
    """Of the loss, where settings name none."""

    def __init__(self, settings: FitSettings) -> None:
        """ValueError, naming the setting, for one that such a family cannot follow."""
        for name in ("boundaries", "draft_vocab"):
            if getattr(settings, name):
                what = "no state but the target's last is read" if name == "boundaries" else "all tokens are scored"
                raise ValueError(f"{name}: in the family {settings.family} {what}")
        self.settings = settings

    @property
    def steps(self) -> int:
        """As `training.fit.family.Family` has it."""
        return self.settings.unroll or self.usual_steps

    @property
    def chain(self) -> int:
        """As `training.fit.family.Family` has it."""
        return self.settings.chain or CHAIN

    def boundaries(self, target: ModelConfig) -> tuple[int, ...]:
        """As `training.fit.family.Family` has it."""
        return (target.num_layers + 1,)

    def build(self, target: TargetRows, columns: dict[int, slice], survey: Survey) -> Head:
        """As `training.fit.family.Family` has it."""
        return self.head(target, columns[target.config.num_layers + 1])

    @abstractmethod
    def head(self, target: TargetRows, final: slice) -> Head:
        """A head before its first step; `final`: columns of the states that hold the last one."""


class HeadPerStepFamily(LastStateFamily):
    """They can draft no more tokens than they learn."""

    @property
    def chain(self) -> int:
        """As `training.fit.family.Family` has it."""
        return self.settings.chain or min(CHAIN, self.steps)

    def check_chain(self, what: str) -> None:
        """ValueError where the chain that is simulated is longer than what can be drafted."""
        if self.settings.chain > self.steps:
            raise ValueError(
                f"chain is {self.settings.chain}, must be at most {self.steps}, the number of {what} (unroll)"
            )
