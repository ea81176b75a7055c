"""The tokens that a head scores: the ones that the target produces most, with a report of what that leaves out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LEAST = 4096


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """ids int64 [entries], ascending: the target's id of each entry. target_size: tokens of the target."""

    ids: Tensor
    target_size: int

    @classmethod
    def whole(cls, target_size: int) -> DraftVocabulary:
        """All tokens of the target."""
        return cls(torch.arange(target_size), target_size)

    @property
    def is_whole(self) -> bool:
        """Whether every token of the target is scored."""
        return len(self.ids) == self.target_size

    @property
    def d2t(self) -> Tensor:
        """Offsets int64 [entries]: id = entry + offset."""
        return self.ids - torch.arange(len(self.ids))

    @property
    def t2d(self) -> Tensor:
        """bool [target_size]: whether a token of the target is scored."""
        mask = torch.zeros(self.target_size, dtype=torch.bool)
        mask[self.ids] = True
        return mask

    def coverage(self, frequencies: np.ndarray) -> float:
        """Part of the occurrences counted in `frequencies` [target_size] that is scored; it caps acceptance."""
        total = int(frequencies.sum())
        return float(frequencies[self.ids.numpy()].sum() / total) if total else 1.0


def select(frequencies: np.ndarray, size: int, always: Collection[int]) -> DraftVocabulary:
    """The `size` most frequent tokens, those of `always` among them; ties and unused ones by ascending id.

    frequencies: int64 [target's vocabulary]. ValueError if `size` is not in 1 to the vocabulary, or below `always`.
    """
    target_size = len(frequencies)
    if not max(1, len(set(always))) <= size <= target_size:
        raise ValueError(f"draft_vocab is {size}, must be {max(1, len(set(always)))} to {target_size}")
    weights = frequencies.astype(np.int64).copy()
    weights[list(always)] = np.iinfo(np.int64).max
    ranked = np.argsort(-weights, kind="stable")[:size]
    return DraftVocabulary(torch.from_numpy(np.sort(ranked).astype(np.int64)), target_size)


def default_size(target_size: int) -> int:
    """A quarter of the target's vocabulary in multiples of 64, which is 32,064 of 128,256, and at least `LEAST`.

    Rows are cheap where the vocabulary is small, and with little to learn from, a quarter of it leaves many tokens out.
    """
    return max(target_size // 4 // 64 * 64, min(target_size, LEAST))


def coverage_by_size(frequencies: np.ndarray, size: int) -> dict[int, float]:
    """Sizes around `size`, and what part of the occurrences counted the most frequent so many tokens make up."""
    ranked = np.sort(frequencies)[::-1].cumsum() / max(1, int(frequencies.sum()))
    sizes = (size // 4, size // 2, size, 2 * size)
    return {each: round(float(ranked[each - 1]), 6) for each in sizes if 0 < each <= len(frequencies)}
