"""out += B (A x * scale) for rows that carry an adapter, whose bits depend on their own x and adapter alone.

Each sum of A x is one chain over the inputs, and each sum of B one over the rank, as those of `linear`; the scale is
applied between the two, in float32. A layer's parts that lie above one another share one product each way: A's lie
above one another too, and B has zeros where a part's outputs meet another part's rank. Ranks are padded by zeros.
Rows without an adapter are not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from slipstream_kernels.jit.arrays import aligned
from slipstream_kernels.jit.compiler import kernel
from slipstream_kernels.jit.intrinsics import pointer_f32
from slipstream_kernels.ops.linear import BLOCK, linear_block, pack_weight, padded
from slipstream_kernels.ops.lora.lora_weight import LoraWeight, lora_reference


@dataclass(frozen=True, slots=True, eq=False)
class PackedLora:
    """Of one layer, of any number of parts: `rank` is that of all parts together, padded to whole blocks.

    uint16 `a` [rank / 64, inputs, 64] and `b` [outputs / 64, rank, 64], as `pack_weight` has them; float32 `scales`
    [rank].
    """

    a: npt.NDArray[np.uint16]
    b: npt.NDArray[np.uint16]
    scales: npt.NDArray[np.float32]

    @property
    def rank(self) -> int:
        return len(self.scales)

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes + self.scales.nbytes


def packed_lora_bytes(inputs: int, outputs: int, rank: int) -> int:
    """`nbytes` of a layer of these sizes, `rank` being that of all parts together."""
    padded_rank = padded(rank)
    return 2 * padded_rank * (inputs + padded(outputs)) + 4 * padded_rank


def pack_lora(parts: Sequence[tuple[int, LoraWeight | None]]) -> PackedLora | None:
    """From the outputs of each part of a layer and what is added to them; None where nothing is added to any."""
    weights = [weight for _, weight in parts if weight is not None]
    if not weights:
        return None
    rank = padded(sum(weight.rank for weight in weights))
    a = torch.zeros(rank, weights[0].a.shape[1], dtype=torch.bfloat16)
    b = torch.zeros(sum(outputs for outputs, _ in parts), rank, dtype=torch.bfloat16)
    scales = np.zeros(rank, np.float32)
    row = column = 0
    for outputs, weight in parts:
        if weight is not None:
            end = column + weight.rank
            a[column:end] = weight.a
            b[row : row + outputs, column:end] = weight.b
            scales[column:end] = weight.scale
            column = end
        row += outputs
    return PackedLora(pack_weight(a), pack_weight(b), aligned(scales))


@kernel
def shrink_block(
    x: int, rows: int, size: int, a: int, scales: int, rank: int, block: int, out: int, zeros: int
) -> None:
    """One block of the scaled sums of A x. Addresses of float32 x [rows, size], packed a, out [rows, rank].

    `zeros`: 64 of them, in float32.
    """
    out += block * BLOCK * 4
    linear_block(x, rows, size, a + block * size * BLOCK * 2, out, rank, zeros, 0)
    factors = pointer_f32(scales + block * BLOCK * 4)
    for row in range(rows):
        sums = pointer_f32(out + row * rank * 4)
        for column in range(BLOCK):
            sums[column] *= factors[column]


@kernel
def expand_block(x: int, rows: int, rank: int, b: int, block: int, out: int, out_stride: int) -> None:
    """Add one block of B x to out. Addresses of float32 x [rows, rank], packed b, out; its stride in floats."""
    out += block * BLOCK * 4
    linear_block(x, rows, rank, b + block * rank * BLOCK * 2, out, out_stride, out, out_stride)


@kernel
def _add_lora(
    x: int, rows: int, size: int, a: int, b: int, scales: int, rank: int, room: int, out: int, blocks: int
) -> None:
    zeros = room + rows * rank * 4
    for block in range(rank // BLOCK):
        shrink_block(x, rows, size, a, scales, rank, block, room, zeros)
    for block in range(blocks):
        expand_block(room, rows, rank, b, block, out, blocks * BLOCK)


def add_lora(x: npt.NDArray[np.float32], packed: PackedLora, out: npt.NDArray[np.float32]) -> None:
    """Add to out, float32 [rows, padded outputs], what an adapter makes of x, float32 [rows, inputs]."""
    x = np.ascontiguousarray(x)
    rows, (blocks, _, _) = len(x), packed.b.shape
    if x.shape[1] != packed.a.shape[1] or out.shape != (rows, blocks * BLOCK):
        raise ValueError(f"x is {x.shape} and out {out.shape} for an adapter of {packed.a.shape} and {packed.b.shape}")
    room = np.zeros(rows * packed.rank + BLOCK, np.float32)
    _add_lora(
        x.ctypes.data, rows, x.shape[1], packed.a.ctypes.data, packed.b.ctypes.data, packed.scales.ctypes.data,
        packed.rank, room.ctypes.data, out.ctypes.data, blocks,
    )  # fmt: skip


def add_lora_reference(x: torch.Tensor, parts: Sequence[tuple[int, LoraWeight | None]], out: torch.Tensor) -> None:
    """The same in torch, in the dtype of x, of weights that are not packed."""
    row = 0
    for outputs, weight in parts:
        if weight is not None:
            out[:, row : row + outputs] += lora_reference(x, weight)
        row += outputs
