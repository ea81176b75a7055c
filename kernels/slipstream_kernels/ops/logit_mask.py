"""Logits of which only some tokens may be chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def masked(logits: npt.NDArray[np.float32], masks: Sequence[npt.NDArray[np.uint32]]) -> npt.NDArray[np.float32]:
    """Write minus infinity over what is not allowed: float32 logits [n, vocab], which are changed and returned.

    Bit v % 32 of word v // 32 of a row's mask says whether token v is allowed. Bias and penalties leave minus infinity
    as it is, so that this may be done before them.
    """
    words = np.stack(masks).astype("<u4", copy=False)
    allowed = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]]
    np.copyto(logits, np.float32(-np.inf), where=allowed == 0)
    return logits
