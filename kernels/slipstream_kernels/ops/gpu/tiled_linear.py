"""Linear layers cut by a given tile."""

from __future__ import annotations

import torch

from slipstream_kernels.ops.gpu.linear_blocks import linear_blocks
from slipstream_kernels.ops.gpu.linear_stream import linear_stream
from slipstream_kernels.ops.gpu.linear_tile import Tile


def tiled_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    tile: Tile,
    *,
    gated: bool = False,
) -> None:
    """`linear`, or `gated_linear` where `gated`, cut by `tile`."""
    run = linear_blocks if tile.descriptors else linear_stream
    run(x, weight, out, bias, residual, tile, gated)
