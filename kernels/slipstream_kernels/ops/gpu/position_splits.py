"""Where attention cuts a context: blocks of 64 positions, and splits of whole blocks at fixed absolute positions.

A split is 128 positions wide below 1024, 256 below 4096, 512 below 32768 and 1024 beyond. The cuts depend on nothing
else, so that a row's sums are taken in one order whoever computes them: splits run in parallel and are folded in
ascending order. Every width divides the position where it begins to hold.

A row's own block, which holds the row's position, belongs to no split of the row's: it is folded last. The splits of a
row end where its own block begins, the last one perhaps in part.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 64
"""Positions that one step of the recurrence takes in."""

_BLOCK = tl.constexpr(BLOCK)
_W0, _W1, _W2, _W3 = tl.constexpr(128), tl.constexpr(256), tl.constexpr(512), tl.constexpr(1024)
"""Widths of splits in the four ranges of positions."""
_P1, _P2, _P3 = tl.constexpr(1024), tl.constexpr(4096), tl.constexpr(32768)
"""Positions where the second, third and fourth range begin."""
_S1 = tl.constexpr(1024 // 128)
_S2 = tl.constexpr((4096 - 1024) // 256)
_S3 = tl.constexpr((32768 - 4096) // 512)
"""Splits of the first, second and third range."""


def own_block(length: int) -> int:
    """First position of the block that holds the last of `length` positions; 0 for none."""
    return max(length - 1, 0) // BLOCK * BLOCK


def split_start(split: int) -> int:
    """First position of a split."""
    start = 0
    for width, splits in ((_W0, _S1), (_W1, _S2), (_W2, _S3)):
        start += min(split, splits.value) * width.value
        split = max(split - splits.value, 0)
    return int(start + split * _W3.value)


def split_bounds(split: int) -> tuple[int, int]:
    """First position of a split and the position behind its last."""
    return split_start(split), split_start(split + 1)


def num_splits(positions: int) -> int:
    """Splits that hold one of the first `positions` positions."""
    splits = 0
    for width, begin, end in ((_W0, 0, _P1.value), (_W1, _P1.value, _P2.value), (_W2, _P2.value, _P3.value)):
        splits += triton.cdiv(min(max(positions - begin, 0), end - begin), width.value)
    return int(splits + triton.cdiv(max(positions - _P3.value, 0), _W3.value))


@triton.jit
def start_of_own_block(length: tl.tensor) -> tl.tensor:
    """`own_block` on the device."""
    return tl.maximum(length - 1, 0) // _BLOCK * _BLOCK


@triton.jit
def start_of_split(split: tl.tensor) -> tl.tensor:
    """`split_start` on the device."""
    start = tl.minimum(split, _S1) * _W0
    start += tl.minimum(tl.maximum(split - _S1, 0), _S2) * _W1
    start += tl.minimum(tl.maximum(split - _S1 - _S2, 0), _S3) * _W2
    return start + tl.maximum(split - _S1 - _S2 - _S3, 0) * _W3


@triton.jit
def splits_below(position: tl.tensor) -> tl.tensor:
    """Splits that end at `position` or below it; with that the split which holds `position`."""
    splits = tl.minimum(position, _P1) // _W0
    splits += tl.minimum(tl.maximum(position - _P1, 0), _P2 - _P1) // _W1
    splits += tl.minimum(tl.maximum(position - _P2, 0), _P3 - _P2) // _W2
    return splits + tl.maximum(position - _P3, 0) // _W3


@triton.jit
def is_split_bound(position: tl.tensor) -> tl.tensor:
    """Whether a split ends, and the next begins, at `position`."""
    width = tl.where(position <= _P1, _W0, tl.where(position <= _P2, _W1, tl.where(position <= _P3, _W2, _W3)))
    return position % width == 0
