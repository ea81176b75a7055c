"""How the work of a layer of e4m3 is cut into programs: never a matter of a result's bits, only of the time it takes.

The bits are those of the asynchronous instructions of Hopper (wgmma), whose first operand has 64 rows: Triton makes
float16 instructions of smaller ones, with other sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from triton import cdiv, next_power_of_2

CHUNK = 128
"""Elements along K after which sums leave the instructions' accumulator."""

MATRIX_ROWS = 64
"""Of an instruction's first operand, at least."""
LEAST_COLUMNS = 16
"""Of its second."""

_MULTIPROCESSORS = 132
_ALONE_BYTES, _SHARED_BYTES = 200 * 1024, 100 * 1024
"""Of shared memory for the stages of a program that has a multiprocessor for itself, and of one of two."""
_MOST_STAGES = 10
_FEW_ROWS = 64
"""Rows up to which reading weights is what takes time."""
_PREFETCH = 1024


@dataclass(frozen=True, slots=True)
class Fp8Tile:
    """One program's share: `tokens` rows times `outputs` weight rows, in steps of `chunks` along K.

    All are powers of two; whichever of tokens and outputs comes first is 64 at least, the other 16.
    """

    tokens: int
    outputs: int
    """A gated layer has half as many columns."""

    warps: int
    tokens_first: bool
    """Tokens are the first operand of the product, weight rows the second."""

    chunks: int = 1
    stages: int = 4
    """Steps whose operands are in shared memory or on their way to it."""

    prefetch: int = 0
    """Bytes of each weight row, a multiple of 512, that are asked for before the previous kernel has ended."""

    def __post_init__(self) -> None:
        first, second = (self.tokens, self.outputs) if self.tokens_first else (self.outputs, self.tokens)
        assert first >= MATRIX_ROWS
        assert second >= LEAST_COLUMNS

    @property
    def area(self) -> int:
        """Sums of a program."""
        return self.tokens * self.outputs

    def programs(self, rows: int, weight_rows: int) -> int:
        """Of a layer."""
        return int(cdiv(rows, self.tokens) * cdiv(weight_rows, self.outputs))

    def filled(self, room: int) -> Fp8Tile:
        """The same with as many stages as `room` bytes of shared memory have place for, 2 at least."""
        step = (self.tokens + self.outputs) * self.chunks * CHUNK
        return replace(self, stages=max(2, min(_MOST_STAGES, room // step)))


_SMALL = Fp8Tile(64, 64, 4, tokens_first=False)
_LARGER = (
    Fp8Tile(128, 64, 4, tokens_first=False, stages=3),
    Fp8Tile(128, 128, 8, tokens_first=False),
    Fp8Tile(256, 128, 8, tokens_first=False),
)
_ABOUT_THE_LEAST = 1.1
"""Times the least work of a multiprocessor: a larger tile reads less, and takes no longer with so much more work."""


@cache
def fp8_tile(rows: int, weight_rows: int) -> Fp8Tile:
    """A tile for so many rows of a layer.

    Of few rows, whose weights' way counts: the layer in narrow programs with many stages, one a multiprocessor where
    there are no more. Of others: small tiles as long as there are two programs a multiprocessor at most, then the
    largest that leave no multiprocessor with much more work than others would.
    """
    if rows <= _FEW_ROWS:
        tokens = max(int(next_power_of_2(rows)), LEAST_COLUMNS)
        tile = Fp8Tile(tokens, 64, 4, tokens_first=False, chunks=2, prefetch=_PREFETCH)
        return tile.filled(_ALONE_BYTES if tile.programs(rows, weight_rows) <= _MULTIPROCESSORS else _SHARED_BYTES)
    if _SMALL.programs(rows, weight_rows) <= 2 * _MULTIPROCESSORS:
        return _SMALL
    work = {tile: cdiv(tile.programs(rows, weight_rows), _MULTIPROCESSORS) * tile.area for tile in _LARGER}
    least = min(work.values())
    return next(tile for tile in reversed(_LARGER) if work[tile] <= _ABOUT_THE_LEAST * least)
