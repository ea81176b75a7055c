"""How the work of a packed linear layer is cut into programs: a matter of time alone."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream_kernels.ops.gpu.packed.packed_weight import WORDS, PackedWeight, chunk_of

PART = 256
"""Columns whose products are asked for at a time."""

MATRIX_ROWS = 64
"""Of the matrix instruction's first operand, for four warps."""


@dataclass(frozen=True, slots=True)
class PackedTile:
    """One program's share of out[rows, outputs], and how it streams its operands."""

    outputs: int
    """Of a program: a multiple of 8. Its weight rows are at most 16 for each warp."""

    tokens: int
    """Rows of x of a program: a power of two from 8 on."""

    stages: int
    """Steps whose operands are in shared memory or on their way to it: at least 3."""

    parts: int = 2
    """Of PART columns in a step: 1 or 2."""

    warps: int = 4
    """4 or 8."""

    def halves(self, gated: bool) -> int:
        """2; 1 where half of the matrix instructions' rows are not wanted: they are zero, and nothing is decoded."""
        rows = self.outputs * (2 if gated else 1)
        assert rows <= 16 * self.warps
        return 1 if rows <= 8 * self.warps else 2

    def shared_memory(self, weight: PackedWeight, gated: bool) -> int:
        """Bytes of the stages."""
        chunks = PART // chunk_of(weight.form.number)
        words = self.halves(gated) * self.warps * chunks * WORDS
        groups = words // 4 * (1 + weight.form.zeros) if weight.form.group else 0
        return self.stages * self.parts * (4 * (words + groups) + 2 * self.tokens * PART)
