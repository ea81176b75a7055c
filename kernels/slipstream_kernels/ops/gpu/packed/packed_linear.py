"""Linear layers of packed weights: bit for bit those of `ops.gpu.linear` with the decoded weight.

Few rows decode the weight in registers; many rows decode it once to `room` and take the kernels of a bfloat16 weight.
Which of the two is a matter of time alone.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from triton import next_power_of_2

from slipstream_kernels.ops.gpu.linear import check_operands, gated_linear, linear
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.packed.decode_weight import decode_weight
from slipstream_kernels.ops.gpu.packed.packed_stream import packed_stream
from slipstream_kernels.ops.gpu.packed.packed_weight import STEP, PackedWeight
from slipstream_kernels.ops.gpu.tuning import even_share

MOST_ROWS = 64
"""Rows up to which a weight is decoded in registers."""

_ROOM = 160 * 1024
"""Bytes of shared memory for the stages of a program."""


def packed_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    room: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    """As `linear`. room: bfloat16, at least N K elements, whose contents are overwritten where rows are many.

    `tile` decodes in registers, cut by it, however many the rows are.
    """
    if tile is None and len(x) > MOST_ROWS:
        linear(x, decoded(weight, room), out, bias=bias, residual=residual)
        return
    assert x.shape[1] == weight.inputs
    assert out.shape == (len(x), len(weight))
    check_operands(x, None, out)
    packed_stream(x, weight, out, bias, residual, tile or packed_tile(weight, len(x), gated=False), gated=False)


def packed_gated_linear(
    x: torch.Tensor, weight: PackedWeight, out: torch.Tensor, room: torch.Tensor, *, tile: Tile | None = None
) -> None:
    """As `gated_linear`, and `packed_linear`; the weight's rows are in the order of `gate_up.interleave_gate_up`."""
    if tile is None and len(x) > MOST_ROWS:
        gated_linear(x, decoded(weight, room), out)
        return
    assert x.shape[1] == weight.inputs
    assert (len(out), 2 * out.shape[1]) == (len(x), len(weight))
    check_operands(x, None, out)
    packed_stream(x, weight, out, None, None, tile or packed_tile(weight, len(x), gated=True), gated=True)


def decoded(weight: PackedWeight, room: torch.Tensor) -> torch.Tensor:
    """The bfloat16 weight, at the start of `room`."""
    outputs, inputs = weight.shape
    view = room[: outputs * inputs].view(outputs, inputs)
    decode_weight(weight, view)
    return view


def packed_tile(weight: PackedWeight, rows: int, *, gated: bool) -> Tile:
    """A tile for any packed weight: as many stages as fit, equal shares for each multiprocessor."""
    outputs = len(weight) // (2 if gated else 1)
    tokens = min(max(next_power_of_2(rows), 16), 64)
    share = even_share(outputs, 32 if gated else 64)
    depth = STEP if weight.number == "int4" else min(128, weight.group or 128)
    return with_stages(Tile(share, tokens, depth, 1), weight, gated=gated)


def with_stages(tile: Tile, weight: PackedWeight, *, gated: bool, room: int = _ROOM) -> Tile:
    """`tile` with 2 to 8 stages, as `room` bytes of shared memory have place for."""
    return replace(tile, stages=max(2, min(8, room // stage_bytes(tile, weight, gated=gated))))


def stage_bytes(tile: Tile, weight: PackedWeight, *, gated: bool) -> int:
    """Of a stage's codes, scales, zero points and tokens in shared memory."""
    lines = tile.weight_rows(gated)
    codes = tile.depth // 2 if weight.number == "int4" else tile.depth
    groups = -(-tile.depth // weight.group) if weight.group else 0
    return lines * (codes + 8 * groups) + 2 * tile.tokens * tile.depth
