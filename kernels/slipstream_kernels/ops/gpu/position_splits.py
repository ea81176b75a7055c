"""Where attention cuts a context: blocks of 64 positions, and splits of whole blocks at fixed absolute positions.

A split is 128 positions wide below 2048, 512 below 16384 and 2048 beyond. The cuts depend on nothing else, so that a
row's sums are taken in one order whoever computes them: splits run in parallel and are folded in ascending order.
Every width divides the position where it begins to hold.
"""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK = 64
"""Positions that one step of the recurrence takes in."""

_NARROW, _MIDDLE, _WIDE = tl.constexpr(128), tl.constexpr(512), tl.constexpr(2048)
_FIRST, _SECOND = tl.constexpr(2048), tl.constexpr(16384)
_NARROW_SPLITS = tl.constexpr(2048 // 128)
_MIDDLE_SPLITS = tl.constexpr((16384 - 2048) // 512)


def split_start(split: int) -> int:
    """First position of a split."""
    narrow = min(split, _NARROW_SPLITS.value)
    middle = min(max(split - _NARROW_SPLITS.value, 0), _MIDDLE_SPLITS.value)
    wide = max(split - _NARROW_SPLITS.value - _MIDDLE_SPLITS.value, 0)
    return int(narrow * _NARROW.value + middle * _MIDDLE.value + wide * _WIDE.value)


def split_bounds(split: int) -> tuple[int, int]:
    """First position of a split and the position behind its last."""
    return split_start(split), split_start(split + 1)


def num_splits(positions: int) -> int:
    """Splits that hold one of the first `positions` positions."""
    narrow = min(positions, _FIRST.value)
    middle = min(max(positions - _FIRST.value, 0), _SECOND.value - _FIRST.value)
    wide = max(positions - _SECOND.value, 0)
    return int(triton.cdiv(narrow, _NARROW.value) + triton.cdiv(middle, _MIDDLE.value) + triton.cdiv(wide, _WIDE.value))


@triton.jit
def start_of_split(split: tl.tensor) -> tl.tensor:
    """`split_start` on the device."""
    narrow = tl.minimum(split, _NARROW_SPLITS)
    middle = tl.minimum(tl.maximum(split - _NARROW_SPLITS, 0), _MIDDLE_SPLITS)
    wide = tl.maximum(split - _NARROW_SPLITS - _MIDDLE_SPLITS, 0)
    return narrow * _NARROW + middle * _MIDDLE + wide * _WIDE


@triton.jit
def splits_below(position: tl.tensor) -> tl.tensor:
    """Splits that end at `position` or below it; with that the split which holds `position`."""
    narrow = tl.minimum(position, _FIRST)
    middle = tl.minimum(tl.maximum(position - _FIRST, 0), _SECOND - _FIRST)
    wide = tl.maximum(position - _SECOND, 0)
    return narrow // _NARROW + middle // _MIDDLE + wide // _WIDE


@triton.jit
def is_split_bound(position: tl.tensor) -> tl.tensor:
    """Whether a split ends, and the next begins, at `position`."""
    width = tl.where(position <= _FIRST, _NARROW, tl.where(position <= _SECOND, _MIDDLE, _WIDE))
    return position % width == 0
