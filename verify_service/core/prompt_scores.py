"""Logprobs of a prompt's own tokens: which rows tell them, and how much of them goes into one output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_ENTRIES = 1024
"""Logprobs in one output, those of alternatives included: peers take outputs in without a pause."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptScores:
    """Natural logarithms under the raw logits, of tokens of a prompt that follow one another.

    `first` is the place of the first of them in the prompt, at least 1. Arrays are by token: `logprobs` float32 [n],
    `ranks` int32 [n] from 1, ties by lowest id; `top_ids` int32 and `top_logprobs` float32 [n, top], best first.
    """

    first: int
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]

    def pieces(self) -> Iterator[PromptScores]:
        """The same in order, in parts of at most MOST_ENTRIES logprobs."""
        size = max(1, MOST_ENTRIES // (1 + self.top_ids.shape[1]))
        for start in range(0, len(self.logprobs), size):
            part = slice(start, start + size)
            yield PromptScores(
                self.first + start,
                self.logprobs[part],
                self.ranks[part],
                self.top_ids[part],
                self.top_logprobs[part],
            )


def next_tokens(tokens: Sequence[int], positions: range) -> NDArray[np.int32]:
    """What follows each position, int32 [positions]: the logits there tell the logprob of that token."""
    return np.array(tokens[positions.start + 1 : positions.stop + 1], dtype=np.int32)
