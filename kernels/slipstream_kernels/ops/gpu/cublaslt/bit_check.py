"""Whether a layer by the library leaves the bits that a tile leaves, on operands where the order of a sum shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from slipstream_kernels.ops.gpu.cublaslt.layers import LibraryLayer
from slipstream_kernels.ops.gpu.gate_up import GROUP
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.tiled_linear import tiled_linear

KINDS = ("normal", "cancelling", "swamped")
"""Operands: normal ones; such that every sum is zero but for what its roundings leave, with factors from 2^-8 to 2^8;
normal ones of which every sixty-fourth is 2^16 times as large."""

_CHUNK = 64
"""Rows that the tile computes at a time."""


@dataclass(frozen=True, slots=True)
class Operands:
    """bfloat16 x [rows, inputs], weight [outputs, inputs] and residual [rows, outputs]."""

    x: torch.Tensor
    weight: torch.Tensor
    residual: torch.Tensor | None


def operands(
    kind: str,
    rows: int,
    outputs: int,
    inputs: int,
    *,
    residual: bool,
    seed: int,
    device: torch.device,
) -> Operands:
    """Operands of a kind of `KINDS`; the same for the same arguments, whatever else draws random numbers."""
    random = torch.Generator(device).manual_seed(seed)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=random, device=device)

    x, weight = normal(rows, inputs), normal(outputs, inputs) * inputs**-0.5
    if kind == "cancelling":
        half = inputs // 2
        x *= torch.exp2(torch.randint(-8, 9, x.shape, generator=random, device=device).float())
        weight *= torch.exp2(torch.randint(-8, 9, weight.shape, generator=random, device=device).float())
        x[:, half : 2 * half], weight[:, half : 2 * half] = -x[:, :half], weight[:, :half]
        x[:, 2 * half :] = 0
        order = torch.randperm(inputs, generator=random, device=device)
        x, weight = x[:, order], weight[:, order]
    elif kind == "swamped":
        x *= torch.where(torch.randint(0, 64, x.shape, generator=random, device=device) == 0, 2.0**16, 1.0)
    added = normal(rows, outputs).bfloat16() if residual else None
    return Operands(x.bfloat16().contiguous(), weight.bfloat16().contiguous(), added)


def same_bits(layer: LibraryLayer, given: Operands, out: torch.Tensor, tile: Tile, *, gated: bool) -> bool:
    """Whether `layer` leaves in `out` what `tile` leaves, bit for bit. Overwrites `out`; waits for both.

    Where there is a residual `out` holds it, and the layer adds to it in place.
    """
    residual = given.residual
    out.fill_(torch.nan)
    if residual is not None:
        out.copy_(residual)
    layer.run(given.x, given.weight, out, None if residual is None else out)
    return all(torch.equal(_bits(got), _bits(want)) for got, want in _expected(given, out, tile, gated=gated))


def _expected(
    given: Operands, out: torch.Tensor, tile: Tile, *, gated: bool
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Rows of `out` beside what the tile makes of them, a chunk at a time: as little memory as that takes."""
    want = torch.empty(min(_CHUNK, len(out)), out.shape[1], dtype=out.dtype, device=out.device)
    for start in range(0, len(out), _CHUNK):
        x, got = given.x[start : start + _CHUNK], out[start : start + _CHUNK]
        residual = None if given.residual is None else given.residual[start : start + _CHUNK]
        tiled_linear(x, given.weight, want[: len(x)], None, residual, tile, gated=gated)
        yield got, want[: len(x)]


def outputs_of(given: Operands, *, float32: bool, gated: bool) -> torch.Tensor:
    """Room for a layer's results."""
    columns = len(given.weight) // (2 if gated else 1)
    assert not gated or columns % GROUP == 0
    dtype = torch.float32 if float32 and not gated else torch.bfloat16
    return torch.empty(len(given.x), columns, dtype=dtype, device=given.x.device)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)
