"""Frequencies of rotary positions (arXiv 2104.09864) and the ways in which checkpoints stretch them.

All are functions of the checkpoint alone: a position turns by the same angles whatever the length of its text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

_TABLE_ROWS = 4096
"""Positions whose angles are in memory at once."""


class RopeScaling(Protocol):
    """A way to stretch frequencies. What turns is multiplied by `attention_factor` beside."""

    @property
    def attention_factor(self) -> float: ...

    def frequencies(self, theta: float, size: int) -> list[float]:
        """Radians a position of the size / 2 pairs of elements that turn."""
        ...


def plain_frequencies(theta: float, size: int) -> list[float]:
    """Radians a position of size / 2 pairs without any scaling."""
    return [theta ** (-2 * i / size) for i in range(size // 2)]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (https://kaiokendev.github.io/context)."""

    factor: float

    @property
    def attention_factor(self) -> float:
        return 1.0

    def frequencies(self, theta: float, size: int) -> list[float]:
        return [frequency / self.factor for frequency in plain_frequencies(theta, size)]


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Stretching of low frequencies by `factor`, with a linear ramp between the two wavelength limits, or none between
    equal ones.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    @property
    def attention_factor(self) -> float:
        return 1.0

    def frequencies(self, theta: float, size: int) -> list[float]:
        return [self._scaled(frequency) for frequency in plain_frequencies(theta, size)]

    def _scaled(self, frequency: float) -> float:
        turns = self.original_context * frequency / (2 * math.pi)
        if turns < self.low_freq_factor:
            return frequency / self.factor
        if turns >= self.high_freq_factor:
            return frequency
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - share) * frequency / self.factor + share * frequency


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Division of low frequencies by `factor`, with a linear ramp over pairs (arXiv 2309.00071, section 3.2).

    The ramp lies between the pairs that turn beta_fast and beta_slow times in the original context, at whole pairs
    where `truncate`.
    """

    factor: float
    attention_factor: float
    beta_fast: float
    beta_slow: float
    original_context: int
    truncate: bool

    def frequencies(self, theta: float, size: int) -> list[float]:
        low, high = self._pair(self.beta_fast, theta, size), self._pair(self.beta_slow, theta, size)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        width = high - low or 0.001
        ramp = [min(max((i - low) / width, 0.0), 1.0) for i in range(size // 2)]
        plain = plain_frequencies(theta, size)
        return [f / self.factor * share + f * (1 - share) for f, share in zip(plain, ramp, strict=True)]

    def _pair(self, turns: float, theta: float, size: int) -> float:
        """The pair that turns so many times in the original context."""
        return size * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """Division of each frequency by a factor of its own (arXiv 2402.13753)."""

    factors: tuple[float, ...]
    attention_factor: float

    def frequencies(self, theta: float, size: int) -> list[float]:
        return [f / factor for f, factor in zip(plain_frequencies(theta, size), self.factors, strict=True)]


@dataclass(frozen=True, slots=True)
class NoRotation:
    """Nothing turns: every angle is 0, so that a head keeps its bits."""

    @property
    def attention_factor(self) -> float:
        return 1.0

    def frequencies(self, theta: float, size: int) -> list[float]:
        return [0.0] * (size // 2)


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotation of a layer's heads. rotated: elements of a head that turn, an even number; 0: all."""

    theta: float
    scaling: RopeScaling | None = None
    rotated: int = 0

    def frequencies(self, head_dim: int) -> list[float]:
        """Radians a position of the pairs of a head that turn."""
        size = self.rotated or head_dim
        return (
            plain_frequencies(self.theta, size) if self.scaling is None else self.scaling.frequencies(self.theta, size)
        )

    @property
    def attention_factor(self) -> float:
        """What turned elements are multiplied by."""
        return 1.0 if self.scaling is None else self.scaling.attention_factor

    def rows(self, positions: npt.NDArray[np.int64], head_dim: int) -> npt.NDArray[np.float32]:
        """float32 [positions, head_dim]: cosines of the head_dim / 2 angles, then their sines.

        Pairs that do not turn come last in each half, with a cosine of 1 and a sine of 0.
        """
        frequencies = self.frequencies(head_dim)
        angles = positions.astype(np.float64)[:, None] * np.array(frequencies)
        half, turned = head_dim // 2, len(frequencies)
        rows = np.zeros((len(positions), head_dim), np.float32)
        rows[:, turned:half] = 1
        rows[:, :turned] = np.cos(angles) * self.attention_factor
        rows[:, half : half + turned] = np.sin(angles) * self.attention_factor
        return rows

    def table(self, positions: int, head_dim: int) -> npt.NDArray[np.float32]:
        """`rows` of the first `positions`."""
        table = np.empty((positions, head_dim), np.float32)
        for start in range(0, positions, _TABLE_ROWS):
            places = np.arange(start, min(start + _TABLE_ROWS, positions))
            table[start : start + len(places)] = self.rows(places, head_dim)
        return table


STILL = Rope(1.0, NoRotation())
"""Of layers whose heads do not turn."""


def halves_of_pairs(head_dim: int) -> list[int]:
    """The element of a checkpoint's head at each place, where the file has those of a pair side by side."""
    return [*range(0, head_dim, 2), *range(1, head_dim, 2)]


def rotated_first(head_dim: int, rotated: int) -> list[int]:
    """The element of a checkpoint's head that stands at each place where pairs lie half a head apart.

    Of `rotated` elements, the first of a checkpoint's head, those of a pair lie rotated / 2 apart.
    """
    half, turned = head_dim // 2, rotated // 2
    still = range(rotated, head_dim)
    return [*range(turned), *still[: half - turned], *range(turned, rotated), *still[half - turned :]]
