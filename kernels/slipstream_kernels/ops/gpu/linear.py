"""Linear layers whose rows do not depend on how many rows there are, nor on how the work is cut.

Every output is one chain of matrix instructions over k = 0, 16, 32, .., K - 16 into a float32 accumulator that starts
at zero. Whether weights or tokens are the instruction's first operand changes no bit, as is measured of every tile, and
neither does an algorithm of cuBLASLt that is taken in a tile's place: `cublaslt.choice` compares them.
"""

from __future__ import annotations

import torch

from slipstream_kernels.ops.gpu.cublaslt.choice import library_choice
from slipstream_kernels.ops.gpu.gate_up import separate_gate_up
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.tiled_linear import tiled_linear
from slipstream_kernels.ops.gpu.tuning import best_tile


def check_operands(x: torch.Tensor, weight: torch.Tensor | None, out: torch.Tensor) -> None:
    """Fail where tensors are not laid out as the kernels read them; `weight` is None where it is packed."""
    assert x.stride(1) == out.stride(1) == 1
    if weight is not None:
        assert weight.is_contiguous()
        assert x.shape[1] == weight.shape[1]
    assert x.shape[1] % 16 == x.stride(0) % 8 == 0


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    tile: Tile | None = None,
) -> None:
    """out = x weight^T + bias + residual, added in float32 in this order and rounded once.

    bfloat16 x [rows, K], weight [N, K], bias [N], residual [rows, N] (may be `out`); out [rows, N] bfloat16 or float32.
    Rows of x lie a multiple of 8 elements apart, K is a multiple of 16. `tile` overrules what was measured.
    """
    check_operands(x, weight, out)
    assert out.shape == (len(x), len(weight))
    if tile is None and bias is None:
        library = library_choice(x.device).layer(x, weight, out, residual)
        if library is not None:
            library.run(x, weight, out, residual)
            return
    tile = tile or best_tile(len(weight), x.shape[1], len(x), gated=False, device=x.device)
    tiled_linear(x, weight, out, bias, residual, tile)


def gated_linear(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, tile: Tile | None = None) -> None:
    """out = silu(x gate^T) * (x up^T) from the float32 sums, rounded once.

    bfloat16 x [rows, K], weight [2 N, K] in the order of `gate_up.interleave_gate_up`, out [rows, N]; else as `linear`.
    """
    check_operands(x, weight, out)
    assert (len(out), 2 * out.shape[1]) == (len(x), len(weight))
    if tile is None:
        library = library_choice(x.device).layer(x, weight, out, gated=True)
        if library is not None:
            library.run(x, weight, out)
            return
    tile = tile or best_tile(out.shape[1], x.shape[1], len(x), gated=True, device=x.device)
    tiled_linear(x, weight, out, None, None, tile, gated=True)


def linear_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    tile: Tile | None = None,  # noqa: ARG001  # the twin's signature
) -> None:
    """The same in torch, with float64 sums."""
    sums = x.double() @ weight.double().T
    if bias is not None:
        sums += bias.double()
    if residual is not None:
        sums += residual.double()
    out.copy_(sums)


def gated_linear_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    tile: Tile | None = None,  # noqa: ARG001  # the twin's signature
) -> None:
    """The same in torch, with float64 sums that are rounded to float32."""
    gate, up = separate_gate_up((x.double() @ weight.double().T).float(), dim=1).chunk(2, dim=1)
    out.copy_(torch.nn.functional.silu(gate) * up)
