"""Keys and values of 8 bits, and the one definition of the bfloat16 numbers that they stand for.

A row is one head's key or value of one token. Its elements are numbers of e4m3 (arXiv 2209.05433) that share a scale.
Whatever reads a row has the bits that it would have if the row's `decode` were stored in bfloat16; whatever writes one
computes from that row alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch

LARGEST = 448.0
"""Of e4m3's numbers."""
NAN = 0x7F
"""The code of elements that are no numbers, or infinite."""
LEAST_SCALE, LARGEST_SCALE = 2.0**-100, 2.0**119
"""Of a row: below it numbers would not be exact in bfloat16, above it they would not be finite."""

_LEAST_EXPONENT, _LARGEST_EXPONENT = 127 - 100, 127 + 119
_ABOVE_448 = 0x1FFFFF
"""Added to the bits of a float32 it carries into the exponent where the fraction exceeds 448's, 1.75 * 2^8."""
_EXPONENT_448 = 8


@dataclass(frozen=True, slots=True)
class Fp8Rows:
    """Rows of any number of heads and slots, in the place of a bfloat16 tensor [..., slots, head_dim].

    codes: uint8 [..., slots, head_dim]. scales: float32 [..., slots], the least that a GPU copies ahead of its use.
    fixed: the scale that rows are written with; 0: each row's own.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    fixed: float = 0.0

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def shape(self) -> torch.Size:
        """That of the codes."""
        return self.codes.shape

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def stride(self, dimension: int) -> int:
        """That of the codes."""
        return self.codes.stride(dimension)


KVRows: TypeAlias = torch.Tensor | Fp8Rows
"""Keys or values [heads, slots, head_dim], as ops take them."""


def row_scales(rows: torch.Tensor) -> torch.Tensor:
    """float32 [...]: the least power of two s with which no element of a row [..., head_dim] exceeds 448 s.

    It lies within the limits above, which a row of zeros has the lower one of.
    """
    largest = rows.float().abs().amax(-1).nan_to_num(torch.inf, posinf=torch.inf)
    exponents = ((largest.contiguous().view(torch.int32) + _ABOVE_448) >> 23) - _EXPONENT_448
    return (exponents.clamp(_LEAST_EXPONENT, _LARGEST_EXPONENT) << 23).view(torch.float32)


def encode(rows: torch.Tensor, fixed: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """uint8 codes and float32 scales [...] of rows [..., head_dim] of float32 or bfloat16.

    An element is multiplied by the float32 reciprocal of the scale and rounded to nearest even; one beyond 448 becomes
    448. What is infinite or no number has the code NAN, and nothing else has.
    """
    wide = rows.float()
    scales = torch.full(wide.shape[:-1], fixed, device=wide.device) if fixed else row_scales(wide)
    scaled = (wide * (1 / scales)[..., None]).clamp(-LARGEST, LARGEST)
    codes = scaled.to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.where(wide.isfinite(), codes, NAN).to(torch.uint8), scales


def decode(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """bfloat16 [..., head_dim]: float32's product of number and scale, rounded to nearest even.

    It is exact where the scale is a row's own.
    """
    return (codes.view(torch.float8_e4m3fn).float() * scales[..., None]).bfloat16()


def rows_at(rows: KVRows, slots: torch.Tensor) -> torch.Tensor:
    """[heads, n, head_dim] of the slots [n] of [heads, slots, head_dim]."""
    return decode(rows.codes[:, slots], rows.scales[:, slots]) if isinstance(rows, Fp8Rows) else rows[:, slots]


def copy_rows(rows: KVRows, source: torch.Tensor, target: torch.Tensor) -> None:
    """Copy slots of [layers, heads, slots, head_dim] to others."""
    for part in (rows.codes, rows.scales) if isinstance(rows, Fp8Rows) else (rows,):
        part[:, :, target] = part[:, :, source]


def write_rows(rows: KVRows, slots: torch.Tensor, new: torch.Tensor) -> None:
    """Set the slots [n] of [heads, slots, head_dim] to bfloat16 [heads, n, head_dim]."""
    if isinstance(rows, Fp8Rows):
        rows.codes[:, slots], rows.scales[:, slots] = encode(new, rows.fixed)
    else:
        rows[:, slots] = new
