"""Logits of which only some tokens may be chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from slipstream_kernels.jit.compiler import kernel

Float32 = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]


def masked(logits: Float32, masks: Sequence[Words]) -> Float32:
    """Write minus infinity over what is not allowed: float32 logits [n, vocab], which are changed and returned.

    Bit v % 32 of word v // 32 of a row's mask says whether token v is allowed. Bias and penalties leave minus infinity
    as it is, so that this may be done before them. Raises ValueError where masks do not fit the logits.
    """
    words = np.stack(masks)
    rows, vocab = logits.shape
    if words.dtype != np.uint32 or len(words) != rows or 32 * words.shape[1] < vocab:
        raise ValueError(f"masks {words.dtype} {words.shape} do not fit logits {logits.shape}")
    _forbid(logits, words)
    return logits


@kernel
def _forbid(logits: Float32, words: Words) -> None:
    vocab, forbidden = logits.shape[1], np.float32(-np.inf)
    for row in range(logits.shape[0]):
        for number in range(words.shape[1]):
            word, first = words[row, number], 32 * number
            for token in range(first, min(first + 32, vocab)):
                if not (word >> np.uint32(token - first)) & np.uint32(1):
                    logits[row, token] = forbidden
