"""Linear layers of packed weights: bit for bit those of `ops.gpu.linear` with the decoded weight.

Few rows decode the weight in registers; many rows decode it to its room and take the kernels of a bfloat16 weight.
Which of the two is a matter of time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import torch
from triton import next_power_of_2

from slipstream_kernels.ops.gpu.launch import INTERPRETED
from slipstream_kernels.ops.gpu.linear import check_operands, gated_linear, linear
from slipstream_kernels.ops.gpu.packed.decode_weight import decode_weight
from slipstream_kernels.ops.gpu.packed.hopper_stream import hopper_stream
from slipstream_kernels.ops.gpu.packed.packed_stream import packed_stream
from slipstream_kernels.ops.gpu.packed.packed_tile import MATRIX_ROWS, PackedTile
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight
from slipstream_kernels.ops.gpu.tuning import even_share

MOST_ROWS = 64
"""Rows up to which a weight is decoded in registers."""

ROOM_ROWS = 128
"""Rows of a weight that are decoded at a time, at least."""

_MULTIPROCESSORS = 132

_ALONE_BYTES, _SHARED_BYTES = 216 * 1024, 110 * 1024
"""Of shared memory for the stages of a program that has a multiprocessor for itself, and of one of two."""


def packed_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    tile: PackedTile | None = None,
) -> None:
    """As `linear`, of a weight that is decoded in registers. `tile` overrules what was measured."""
    assert x.shape[1] == weight.shape[1]
    assert out.shape == (len(x), len(weight))
    check_operands(x, None, out)
    _stream(x, weight, out, bias, residual, tile or packed_tile(weight, len(x), gated=False), gated=False)


def packed_gated_linear(
    x: torch.Tensor, weight: PackedWeight, out: torch.Tensor, *, tile: PackedTile | None = None
) -> None:
    """As `gated_linear`, in the same way; the weight's rows are in the order of `gate_up.interleave_gate_up`."""
    assert x.shape[1] == weight.shape[1]
    assert (len(out), 2 * out.shape[1]) == (len(x), len(weight))
    check_operands(x, None, out)
    _stream(x, weight, out, None, None, tile or packed_tile(weight, len(x), gated=True), gated=True)


def _stream(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tile: PackedTile,
    *,
    gated: bool,
) -> None:
    run = hopper_stream if has_hopper_stream() else packed_stream
    run(x, weight, out, bias, residual, tile, gated)


def linear_in_room(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    dense: Callable[..., None] = linear,
    decode: Callable[..., None] = decode_weight,
) -> None:
    """As `linear`, by `dense` of a weight that `decode` writes to the weight's room, as many rows at a time as fit."""
    for start, part in _in_room(weight, decode):
        columns = slice(start, start + len(part))
        addends = {"bias": None if bias is None else bias[columns]}
        addends["residual"] = None if residual is None else residual[:, columns]
        dense(x, part, out[:, columns], **addends)


def gated_linear_in_room(
    x: torch.Tensor,
    weight: PackedWeight,
    out: torch.Tensor,
    *,
    dense: Callable[..., None] = gated_linear,
    decode: Callable[..., None] = decode_weight,
) -> None:
    """As `gated_linear`, in the same way."""
    for start, part in _in_room(weight, decode):
        dense(x, part, out[:, start // 2 : (start + len(part)) // 2])


def _in_room(weight: PackedWeight, decode: Callable[..., None]) -> Iterator[tuple[int, torch.Tensor]]:
    """Row numbers, multiples of `ROOM_ROWS`, and bfloat16 rows from there on, each in the place of those before."""
    outputs, inputs = weight.shape
    room = weight.room
    assert room is not None
    assert len(room) >= room_elements(weight.shape)
    step = len(room) // (ROOM_ROWS * inputs) * ROOM_ROWS
    for start in range(0, outputs, step):
        rows = min(step, outputs - start)
        part = room[: rows * inputs].view(rows, inputs)
        decode(weight, part, start)
        yield start, part


def room_elements(shape: tuple[int, int]) -> int:
    """The fewest that the room of a weight [N, K] has."""
    outputs, inputs = shape
    return min(outputs, ROOM_ROWS) * inputs


def decodes_in_registers(weight: PackedWeight, rows: int, *, gated: bool) -> bool:  # noqa: ARG001
    """Whether so many rows are faster with a weight that is decoded in registers than with one in its room."""
    return rows <= MOST_ROWS


@cache
def has_hopper_stream() -> bool:
    """Whether the device has the asynchronous products of `hopper_sums`."""
    return not INTERPRETED and torch.cuda.get_device_capability() == (9, 0)


def packed_tile(weight: PackedWeight, rows: int, *, gated: bool) -> PackedTile:
    """A tile for any packed weight: equal shares for each multiprocessor, as many stages as fit.

    Where there is one program for each, it takes all shared memory and the larger steps; else two share it.
    """
    products = 2 if gated else 1
    outputs = len(weight) // products
    tokens = min(max(next_power_of_2(rows), 16), 64)
    # Of many tokens each program reads as much as of its weights: fewer programs share more.
    wide = PackedTile(2 * MATRIX_ROWS // products, 64, 3, 1, 8)
    eight = tokens == 64 and len(weight) > MATRIX_ROWS * _MULTIPROCESSORS
    warps = 8 if eight and wide.shared_memory(weight, gated) <= _ALONE_BYTES else 4
    share = even_share(outputs, 16 * warps // products)
    alone = tokens == 64 or outputs <= share * _MULTIPROCESSORS
    tile = PackedTile(share, tokens, 3, 2 if alone and tokens < 64 else 1, warps)
    if tile.shared_memory(weight, gated) > _ALONE_BYTES:
        tile = replace(tile, parts=1)
    return with_stages(tile, weight, gated=gated, room=_ALONE_BYTES if alone else _SHARED_BYTES)


def with_stages(tile: PackedTile, weight: PackedWeight, *, gated: bool, room: int) -> PackedTile:
    """`tile` with 3 to 12 stages, as `room` bytes of shared memory have place for."""
    stage = replace(tile, stages=1).shared_memory(weight, gated)
    return replace(tile, stages=max(3, min(12, room // stage)))
