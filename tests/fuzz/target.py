"""What a fuzz target is: the part under test, how its inputs are made, and what must hold for each of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from random import Random
from typing import ClassVar


class BrokenError(AssertionError):
    """A property that an input has broken; the message says which."""


class Target(ABC):
    """One part of the system that takes bytes from outside.

    An input is a function of the random generator given to `make`, and `check` depends on the input alone, so that a
    finding is repeated from its bytes. Whatever `check` raises is a finding.
    """

    name: ClassVar[str]
    share: ClassVar[int]
    """Inputs of a long run, relative to those of other targets: fewer where one costs more."""

    def __init__(self, folder: Path) -> None:  # noqa: B027 (there are targets that start nothing)
        """`folder` is an empty one of the run's own, in memory where the system has such."""

    @abstractmethod
    def make(self, random: Random) -> bytes:
        """One input."""

    @abstractmethod
    def check(self, data: bytes) -> None:
        """Feed one input to the part under test and check what it did."""

    def settle(self) -> None:  # noqa: B027 (a hook)
        """Check that nothing is left of the inputs so far and that ordinary work is still done."""

    def close(self) -> None:  # noqa: B027 (a hook)
        """Stop what was started."""

    @property
    def seeds(self) -> Path:
        """The folder of inputs that are kept: each is checked in every run, before the made ones."""
        return Path(__file__).parent / "seeds" / self.name
