"""A packed weight decoded to bfloat16 in device memory: for rows so many that the weights' way no longer counts."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from slipstream_kernels.ops.gpu.launch import launch, release_next, wait_for_previous
from slipstream_kernels.ops.gpu.packed.fragments import ROWS, decoded_tile, groups_at, words_at
from slipstream_kernels.ops.gpu.packed.packed_weight import UNIT, PackedWeight, chunk_of, unpacked
from slipstream_kernels.ops.quantised_weight import decode, implied_zero

_COLUMNS = 128


@triton.jit
def _decode_weight(
    codes: tl.tensor,
    scales: tl.tensor,
    zeros: tl.tensor,
    out: tl.tensor,
    first: int,
    rows: int,
    units: int,
    chunks: int,
    groups: int,
    inputs: int,
    NUMBER: tl.constexpr,
    PAIRED: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    ZEROS: tl.constexpr,
    CHUNKS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """64 of the `rows` from unit `first` on, which `out` begins with, and CHUNKS chunks of COLUMNS."""
    release_next()
    # The room is read by the kernel in front of this one, and written below.
    wait_for_previous()
    unit = first + tl.program_id(0) * 8
    chunk = tl.program_id(1) * CHUNKS
    words = words_at(codes, unit, units, chunk, chunks, CHUNKS)
    factors = groups_at(scales, unit, units, chunk, groups, CHUNKS, COLUMNS, GROUP)
    points = groups_at(zeros, unit, units, chunk, groups, CHUNKS, COLUMNS, GROUP) if ZEROS else ZERO
    tile = decoded_tile(words, factors, points, NUMBER, PAIRED, CHUNKS)
    row = tl.program_id(0) * 64 + tl.arange(0, 64)[:, None]
    column = chunk * COLUMNS + tl.arange(0, CHUNKS * COLUMNS)[None, :]
    tl.store(out + row.to(tl.int64) * inputs + column, tile, mask=(row < rows) & (column < inputs))


def decode_weight(weight: PackedWeight, out: torch.Tensor, first: int = 0) -> None:
    """Write rows of the bfloat16 weight from `first` on, a multiple of UNIT, to `out`, contiguous [rows, K].

    The bits are those of `ops.quantised_weight.decode`.
    """
    form = weight.form
    assert first % UNIT == 0
    assert first + len(out) <= form.outputs
    assert out.shape[1] == form.inputs
    assert out.is_contiguous()
    columns = chunk_of(form.number)
    launch(
        _decode_weight,
        (triton.cdiv(len(out), ROWS), triton.cdiv(form.inputs, _COLUMNS)),
        weight.codes,
        weight.scales,
        weight.zeros,
        out,
        first // UNIT,
        len(out),
        form.units,
        form.chunks,
        form.groups,
        form.inputs,
        NUMBER=form.number,
        PAIRED=weight.paired,
        GROUP=form.group,
        ZERO=float(implied_zero(form.number)),
        ZEROS=form.zeros,
        CHUNKS=_COLUMNS // columns,
        COLUMNS=columns,
    )


def decode_weight_reference(weight: PackedWeight, out: torch.Tensor, first: int = 0) -> None:
    """The same in torch."""
    out.copy_(decode(unpacked(weight))[first : first + len(out)])
