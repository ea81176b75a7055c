"""float32 numbers as unsigned integers of the same order, in which -0 and 0 are one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MINUS_INFINITY_KEY, LARGEST_KEY = 0x007FFFFF, 0xFFFFFFFF
"""The key of minus infinity, the lowest, and one above that of every number."""
_SIGN = 1 << 31
_SIGN_KEY, _ALL = tl.constexpr(_SIGN), tl.constexpr(LARGEST_KEY)


@triton.jit
def sort_key(x: tl.tensor) -> tl.tensor:
    """uint32 keys in the order of float32 x, which has no NaN."""
    bits = tl.where(x == 0, 0.0, x).to(tl.uint32, bitcast=True)
    return tl.where(bits >= _SIGN_KEY, bits ^ _ALL, bits | _SIGN_KEY)


@triton.jit
def value_of(key: tl.tensor) -> tl.tensor:
    """The float32 of a key."""
    return tl.where(key >= _SIGN_KEY, key ^ _SIGN_KEY, key ^ _ALL).to(tl.float32, bitcast=True)


def sort_key_reference(x: torch.Tensor) -> torch.Tensor:
    """Twin of `sort_key`, in int64."""
    bits = torch.where(x == 0, 0.0, x).view(torch.int32).long() & LARGEST_KEY
    return torch.where(bits >= _SIGN, bits ^ LARGEST_KEY, bits | _SIGN)


def as_int32(key: int) -> int:
    """The int32 with the bits of a key."""
    return key - (1 << 32) if key >= _SIGN else key
