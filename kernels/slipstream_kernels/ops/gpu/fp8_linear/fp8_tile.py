"""How the work of a layer of e4m3 is cut into programs: never a matter of a result's bits, only of the time it takes.

The bits are those of the asynchronous instructions of Hopper (wgmma), whose first operand has 64 rows: Triton makes
float16 instructions of smaller ones, with other sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from triton import next_power_of_2

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
_FEW_ROWS, _MANY_ROWS = 64, 768
"""Rows up to which reading weights is what takes time, and from which on products are."""
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

    def filled(self, room: int) -> Fp8Tile:
        """The same with as many stages as `room` bytes of shared memory have place for, 2 at least."""
        step = (self.tokens + self.outputs) * self.chunks * CHUNK
        return replace(self, stages=max(2, min(_MOST_STAGES, room // step)))


def fp8_tile(rows: int, weight_rows: int) -> Fp8Tile:
    """A tile for so many rows of a layer: of few, whose weights' way counts, equal shares of it with many stages."""
    if rows > _MANY_ROWS:
        return Fp8Tile(128, 256, 8, tokens_first=True)
    if rows > 2 * _FEW_ROWS:
        return Fp8Tile(128, 64, 4, tokens_first=False)
    wide = weight_rows > 2 * MATRIX_ROWS * _MULTIPROCESSORS
    if rows > _FEW_ROWS:
        return Fp8Tile(128 if wide else 64, 64, 4, tokens_first=False)
    tokens = max(int(next_power_of_2(rows)), LEAST_COLUMNS)
    tile = Fp8Tile(tokens, 128 if wide else 64, 4, tokens_first=False, prefetch=_PREFETCH)
    if weight_rows > tile.outputs * _MULTIPROCESSORS:
        return tile.filled(_SHARED_BYTES)
    return replace(tile, chunks=2).filled(_ALONE_BYTES)
