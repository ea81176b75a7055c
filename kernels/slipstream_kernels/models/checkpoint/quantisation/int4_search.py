"""Scales of groups of 4 bits: of several that are tried, the one whose rounded elements are nearest.

The kernel for a CPU and its twin, which runs on any device, give the same bits: errors are summed in one order.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from slipstream_kernels.jit.compiler import kernel

_SUMS = 16
"""A group's errors are added to so many sums by turns, and those in halves; a divisor of groups."""

_WHOLE = np.float32(1.5 * 2**23)

_KERNEL_GROUPS = 1 << 12
"""Groups of one task of a thread."""


def nearest_int4(wide: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of scales [groups, tries] has the least squared error, of equal or infinite ones the first, and codes.

    wide: finite float32 [groups, elements], of which there are a multiple of 16. Returns scales [groups], and whole
    numbers from -8 to 7, int8 as `wide`.
    """
    if wide.device.type != "cpu":
        return nearest_int4_reference(wide, scales)
    best, codes = torch.empty(len(wide)), torch.empty(wide.shape, dtype=torch.int8)
    arrays = [each.contiguous().numpy() for each in (wide, scales)] + [best.numpy(), codes.numpy()]

    def part(start: int) -> None:
        _nearest(*(each[start : start + _KERNEL_GROUPS] for each in arrays))

    starts = range(0, len(wide), _KERNEL_GROUPS)
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(part, starts))
    return best, codes


def nearest_int4_reference(wide: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch."""
    best, least = scales[:, 0], torch.full_like(scales[:, 0], torch.inf)
    for tried in scales.unbind(1):
        squares = (_codes(wide, tried) * tried[:, None] - wide).square_().view(len(wide), -1, _SUMS)
        sums = torch.zeros_like(squares[:, 0])
        for turn in range(squares.shape[1]):
            sums += squares[:, turn]
        while sums.shape[1] > 1:
            half = sums.shape[1] // 2
            sums = sums[:, :half] + sums[:, half:]
        error = sums[:, 0]
        best, least = torch.where(error < least, tried, best), torch.minimum(error, least)
    return best, _codes(wide, best).to(torch.int8)


def _codes(wide: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return (wide / scales[:, None]).round_().clamp_(-8, 7)


@kernel
def _nearest(wide: Any, scales: Any, best: Any, codes: Any) -> None:
    count = wide.shape[1]
    squares, sums = np.empty(count, np.float32), np.empty(_SUMS, np.float32)
    for group in range(wide.shape[0]):
        elements = wide[group]
        best[group], least = scales[group, 0], np.float32(np.inf)
        for attempt in range(scales.shape[1]):
            scale = scales[group, attempt]
            for i in range(count):
                off = _code(elements[i] / scale) * scale - elements[i]
                squares[i] = off * off
            sums[:] = np.float32(0)
            for start in range(0, count, _SUMS):
                for i in range(_SUMS):
                    sums[i] += squares[start + i]
            half = _SUMS // 2
            while half:
                for i in range(half):
                    sums[i] += sums[i + half]
                half //= 2
            if sums[0] < least:
                least, best[group] = sums[0], scale
        scale = best[group]
        for i in range(count):
            codes[group, i] = np.int8(_code(elements[i] / scale))


@kernel
def _code(quotient: Any) -> Any:
    """The nearest of -8 to 7, of two the even one; adding 1.5 * 2^23 leaves no room for fractions."""
    held = min(max(quotient, np.float32(-8)), np.float32(7))
    return (held + _WHOLE) - _WHOLE
