"""How the work of a linear layer is cut into programs: never a matter of a result's bits, only of the time it takes."""

from __future__ import annotations

from dataclasses import dataclass

from triton import next_power_of_2

SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory a program may use on a GPU of compute capability 9.0."""

_MATRIX_ROWS = 64
"""Rows of the matrix instruction's first operand."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One program's share of out[rows, outputs], and how it streams its operands.

    Weight rows are the first operand of the matrix product, in a block of a power of two and at least 64 rows of which
    the program's own are loaded and the others are zero; tokens are the second, unless `tokens_first`.
    """

    outputs: int
    """Outputs of a program: a multiple of 8, a power of two where `descriptors`. A gated one takes two weight rows."""

    tokens: int
    """Rows of x of a program: a power of two, at least 16."""

    depth: int
    """Steps along K: a power of two, at least 16."""

    stages: int
    """Steps whose operands are in shared memory or on their way to it."""

    warps: int = 4
    """4 or 8."""

    descriptors: bool = False
    """Operands are fetched by the tensor memory accelerator, not by copies of each thread."""

    persistent: bool = False
    """With `descriptors`: as many programs as the device holds at once, each taking tile after tile."""

    prefetch: int = 0
    """Bytes of each weight row, a multiple of 512, that a program asks for before the previous kernel has ended. Not
    where `persistent`."""

    tokens_first: bool = False
    """With `descriptors`: tokens, at least 64, are the first operand of the product and weight rows the second."""

    def weight_rows(self, gated: bool) -> int:
        """Rows of the block of weights."""
        rows = int(next_power_of_2(self.outputs * (2 if gated else 1)))
        return rows if self.tokens_first else max(rows, _MATRIX_ROWS)

    def shared_memory(self, gated: bool) -> int:
        """Bytes of the stages; what the compiler adds for barriers and reordering is less than 8 KB."""
        return self.stages * (self.weight_rows(gated) + self.tokens) * self.depth * 2
