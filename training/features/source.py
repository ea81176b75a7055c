"""Token sequences with the target's hidden states, wherever they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """A conversation's tokens, or one of several parts of it (`training.answers.sequences`)."""

    id: str
    part: int
    category: str
    token_ids: torch.Tensor
    """int64 [n]"""
    produced: torch.Tensor
    """bool [n], True where the target produced the token, given those before it"""
    recorded: bool = False
    """Whether others produced these tokens, in the target's place"""

    def with_states(self, states: torch.Tensor) -> FeatureSequence:
        """The same with its states, bfloat16 [n, boundaries * hidden_size]."""
        return FeatureSequence(self.id, self.category, self.token_ids, self.produced, states, self.part, self.recorded)


@dataclass(frozen=True, slots=True)
class FeatureSequence:
    """A sequence with what a drafter is sent of it. The state of position p predicted the token at p + 1."""

    id: str
    category: str
    token_ids: torch.Tensor
    """int64 [n]"""
    produced: torch.Tensor
    """bool [n], True where the target produced the token, given those before it"""
    states: torch.Tensor
    """bfloat16 [n, boundaries * hidden_size], boundaries side by side in the order of `FeatureSource.boundaries`"""
    part: int = 0
    recorded: bool = False
    """Whether others produced these tokens, in the target's place"""


class FeatureSource(Protocol):
    """Sequences in a fixed order, each of one token or more. Equal sources give equal bits, however they are read."""

    @property
    def model(self) -> Path:
        """Folder of the target."""
        ...

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Numbered as `slipstream_kernels.models.capture_layers` does; layers + 1 is what the target's head reads."""
        ...

    @property
    def hidden_size(self) -> int:
        """Of the target."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash over model, boundaries and sequences, in hexadecimal. Equal ones mean equal contents."""
        ...

    @property
    def readers(self) -> int:
        """How many threads may read at once, with profit."""
        ...

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each sequence; costs no pass of the target."""
        ...

    def __len__(self) -> int:
        """Sequences."""
        ...

    def tokens(self, index: int) -> TokenSequence:
        """A sequence without its states; costs no pass of the target. Raises IndexError beyond the last."""
        ...

    def __getitem__(self, index: int) -> FeatureSequence:
        """A sequence with its states. Raises IndexError beyond the last."""
        ...

    def batch(self, indices: Sequence[int]) -> list[FeatureSequence]:
        """Several sequences in the order asked for: cheaper than one after the other where states are computed."""
        ...
