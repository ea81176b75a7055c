"""A score and a number in one int64: in the order of the score, the lower number first of equals."""

from __future__ import annotations

import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.sort_keys import LARGEST_KEY, sort_key, value_of

NOTHING = tl.constexpr(-(2**63))
"""Below every key."""
_SIGN, _ALL = tl.constexpr(1 << 31), tl.constexpr(LARGEST_KEY)


@triton.jit
def preference_key(there: tl.tensor, score: tl.tensor, number: tl.tensor) -> tl.tensor:
    """int64 keys of float32 scores, no NaN among them, and int32 numbers from 0; NOTHING where not `there`."""
    high = (sort_key(score) ^ _SIGN).to(tl.int32, bitcast=True).to(tl.int64) << 32
    low = (number.to(tl.uint32, bitcast=True) ^ _ALL).to(tl.int64)
    return tl.where(there, high | low, NOTHING)


@triton.jit
def score_of(key: tl.tensor) -> tl.tensor:
    """The float32 score of a key, 0 for -0."""
    return value_of((key >> 32).to(tl.int32).to(tl.uint32, bitcast=True) ^ _SIGN)


@triton.jit
def number_of(key: tl.tensor) -> tl.tensor:
    """The int32 number of a key."""
    return (key.to(tl.int32).to(tl.uint32, bitcast=True) ^ _ALL).to(tl.int32, bitcast=True)
