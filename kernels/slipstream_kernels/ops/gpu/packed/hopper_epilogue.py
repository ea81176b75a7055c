"""`linear_epilogue` for sums as `hopper_sums` leaves them."""

from __future__ import annotations

from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def gate_and_up(sums: gl.tensor, TOKENS: gl.constexpr, halves: gl.constexpr, scratch: gl.constexpr) -> Any:
    """As `linear_epilogue.gate_and_up`, of sums [lines, TOKENS] by units in that order; scratch: a layout."""
    lines: gl.constexpr = sums.shape[0]
    if halves == 2:
        groups = gl.permute(gl.reshape(sums, (lines // 16, 2, 8, TOKENS)), (0, 2, 3, 1))
    else:
        sums = gl.convert_layout(sums, scratch)
        groups = gl.permute(gl.reshape(sums, (lines // 32, 2, 16, TOKENS)), (0, 2, 3, 1))
    return gl.split(groups)


@gluon.jit
def gated_sums(sums: gl.tensor, TOKENS: gl.constexpr, halves: gl.constexpr, scratch: gl.constexpr) -> gl.tensor:
    """silu(gate) * up as `linear_epilogue.gated_sums`, of sums [lines, TOKENS]: half as many lines."""
    gate, up = gate_and_up(sums, TOKENS, halves, scratch)
    decay = gl.exp(-gl.abs(gate))
    return gl.reshape(gate * gl.where(gate >= 0, 1.0, decay) / (1.0 + decay) * up, (sums.shape[0] // 2, TOKENS))
