"""What is measured: which proposers, at which temperatures, on how much text."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from slipstream.completion import SpeculationOptions
from training.answers.settings import AnswerSettings

PLAIN: Final = ""
"""Stands for plain decoding among the proposers."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to answer all prompts."""

    proposer: str
    temperature: float

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.proposer or 'plain decoding'}, T = {self.temperature:g}"

    @property
    def speculation(self) -> SpeculationOptions:
        """What its requests say."""
        return SpeculationOptions(enabled=bool(self.proposer), proposer=self.proposer)

    @property
    def tenant(self) -> str:
        """Whose requests these are: nothing is found in a cache that another cell had put there."""
        return f"evaluate {self.proposer} {self.temperature:g}"


@dataclass(frozen=True, slots=True)
class AcceptanceSettings:
    """Everything that decides what is asked, beside prompts and model."""

    proposers: tuple[str, ...]
    """The first is the one that the report is about."""
    plain: bool = True
    """Whether plain decoding is measured beside them."""
    temperatures: tuple[float, ...] = (0.0, 0.8)
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 256
    max_turns: int = 1
    seed: int = 0
    limit: int | None = None
    """Conversations, spread over the categories; None: all."""
    model: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"proposers": list(self.proposers), "temperatures": list(self.temperatures)}

    @property
    def cells(self) -> list[Cell]:
        """In the order in which they are measured."""
        names = ((PLAIN,) if self.plain else ()) + self.proposers
        return [Cell(name, temperature) for temperature in self.temperatures for name in names]

    def answers(self, cell: Cell) -> AnswerSettings:
        """How the answers of a cell are asked for: with equal seeds in all of them."""
        return AnswerSettings(
            cell.temperature, self.top_p, self.top_k, self.max_tokens, self.max_turns, self.seed, self.model
        )
