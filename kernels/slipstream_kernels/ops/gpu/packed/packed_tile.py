"""How the work of a packed linear layer is cut into programs: a matter of time alone."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.ops.gpu.packed.packed_weight import UNIT, WORDS, PackedWeight, chunk_of

PART = 256
"""Columns whose products are asked for at a time."""

MATRIX_ROWS = 64
"""Of the matrix instruction's first operand."""


@dataclass(frozen=True, slots=True)
class PackedTile:
    """One program's share of out[rows, outputs], and how it streams its operands."""

    outputs: int
    """Of a program: a multiple of 8 whose weight rows are 64 at most. Where they are 32 at most, half of the matrix
    instruction's rows are zero and not decoded."""

    tokens: int
    """Rows of x of a program: a power of two from 16 on."""

    stages: int
    """Steps whose operands are in shared memory or on their way to it: at least 3."""

    parts: int = 2
    """Of PART columns in a step: 1 or 2."""

    def weight_rows(self, gated: bool) -> int:
        """Rows that are decoded: 32 or 64."""
        rows = self.outputs * (2 if gated else 1)
        assert rows <= MATRIX_ROWS
        return 32 if rows <= MATRIX_ROWS // 2 else MATRIX_ROWS

    def shared_memory(self, weight: PackedWeight, gated: bool) -> int:
        """Bytes of the stages."""
        chunks = PART // chunk_of(weight.form.number)
        words = self.weight_rows(gated) // UNIT * chunks * WORDS
        groups = words // 4 * (1 + weight.form.zeros) if weight.form.group else 0
        return self.stages * self.parts * (4 * (words + groups) + 2 * self.tokens * PART)
