"""Logprobs of decided tokens, from arrays to what clients are told."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slipstream.generation_types import PositionLogprobs, TokenLogprob
from verify_service.core.step_result import VerifyResult


def chosen_rows(decision: VerifyResult, count: int) -> list[int]:
    """Logit rows at which the first `count` tokens of a decision were sampled."""
    first = decision.first_row
    return [first, *(first + 1 + node for node in decision.path.nodes)][:count]


def logprob_entries(
    chosen: NDArray[np.int32],
    values: NDArray[np.float32],
    ranks: NDArray[np.int32],
    top_ids: NDArray[np.int32],
    top_values: NDArray[np.float32],
) -> tuple[PositionLogprobs, ...]:
    """One entry a token: `chosen`, `values`, `ranks` are [n], `top_ids` and `top_values` [n, top], best first."""
    return tuple(
        PositionLogprobs(
            TokenLogprob(token, value, rank),
            tuple(TokenLogprob(*entry, place) for place, entry in enumerate(zip(ids, logs, strict=True), start=1)),
        )
        for token, value, rank, ids, logs in zip(
            chosen.tolist(), values.tolist(), ranks.tolist(), top_ids.tolist(), top_values.tolist(), strict=True
        )
    )
