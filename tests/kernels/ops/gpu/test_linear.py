from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.gate_up import interleave_gate_up
from slipstream_kernels.ops.gpu.linear import gated_linear, gated_linear_reference, linear, linear_reference
from slipstream_kernels.ops.gpu.linear_tile import Tile

STREAM = Tile(outputs=40, tokens=16, depth=64, stages=3, prefetch=1024)
BLOCKS = Tile(outputs=64, tokens=32, depth=64, stages=3, descriptors=True, persistent=True)
TOKENS_FIRST = Tile(outputs=32, tokens=64, depth=64, stages=3, descriptors=True, tokens_first=True)
TILES = [
    STREAM,
    Tile(outputs=64, tokens=32, depth=128, stages=2),
    Tile(outputs=24, tokens=16, depth=32, stages=2),
    BLOCKS,
    Tile(outputs=128, tokens=16, depth=32, stages=3, descriptors=True, prefetch=1024),
    TOKENS_FIRST,
]
SHAPES = [(5, 96, 48), (1, 64, 128), (37, 208, 80)]
"""(rows, outputs, inputs)"""


def normal(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, device=device).bfloat16()


def poisoned(*shape: int, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, torch.nan, dtype=dtype, device=device)


def error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("rows", "outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("tile", TILES)
def test_sums_match_float64(device: torch.device, rows: int, outputs: int, inputs: int, tile: Tile) -> None:
    torch.manual_seed(rows)
    x, weight = normal(rows, inputs, device=device), normal(outputs, inputs, device=device)
    out = poisoned(rows, outputs, device=device, dtype=torch.float32)
    linear(x, weight, out, tile=tile)
    assert error(out, x.double() @ weight.double().T) < 1e-6


@pytest.mark.parametrize("op", [linear, linear_reference])
@pytest.mark.parametrize("tile", [STREAM, BLOCKS, None])
@pytest.mark.parametrize("addends", ["bias", "residual", "both"])
def test_addends(device: torch.device, op, tile: Tile | None, addends: str) -> None:
    torch.manual_seed(1)
    x, weight = normal(19, 48, device=device), normal(80, 48, device=device)
    bias, residual = normal(80, device=device), normal(19, 80, device=device)
    out = poisoned(19, 80, device=device)
    chosen = {"bias": {"bias": bias}, "residual": {"residual": residual}, "both": {"bias": bias, "residual": residual}}
    op(x, weight, out, **chosen[addends], tile=tile)
    expected = x.double() @ weight.double().T + sum(addend.double() for addend in chosen[addends].values())
    assert error(out, expected) < 2**-8


@pytest.mark.parametrize("tile", [STREAM, BLOCKS])
def test_residual_in_place(device: torch.device, tile: Tile) -> None:
    torch.manual_seed(2)
    x, weight, stream = normal(21, 64, device=device), normal(96, 64, device=device), normal(21, 96, device=device)
    out = poisoned(21, 96, device=device)
    linear(x, weight, out, residual=stream, tile=tile)
    linear(x, weight, stream, residual=stream, tile=tile)
    assert torch.equal(out, stream)


@pytest.mark.parametrize(("rows", "outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("op", [gated_linear, gated_linear_reference])
@pytest.mark.parametrize("tile", [STREAM, Tile(32, 32, 128, 2), BLOCKS, TOKENS_FIRST, None])
def test_gated(device: torch.device, op, rows: int, outputs: int, inputs: int, tile: Tile | None) -> None:
    torch.manual_seed(rows)
    x, weight = normal(rows, inputs, device=device), normal(2 * outputs, inputs, device=device)
    out = poisoned(rows, outputs, device=device)
    op(x, interleave_gate_up(weight), out, tile=tile)
    gate, up = (x.double() @ weight.double().T).chunk(2, dim=1)
    assert error(out, torch.nn.functional.silu(gate) * up) < 2**-8


def test_gate_beyond_the_exponentials_range(device: torch.device) -> None:
    x = torch.full((2, 16), 64.0, device=device).bfloat16()
    weight = torch.ones(32, 16, device=device).bfloat16()
    weight[:16] = -1.0
    out = poisoned(2, 16, device=device)
    gated_linear(x, interleave_gate_up(weight), out)
    assert (out == 0).all()


@pytest.mark.parametrize("tile", TILES)
def test_rows_stand_alone_whatever_the_tile(device: torch.device, tile: Tile) -> None:
    torch.manual_seed(3)
    x, weight = normal(21, 96, device=device), normal(112, 96, device=device)
    together, alone, default = (poisoned(21, 112, device=device, dtype=torch.float32) for _ in range(3))
    linear(x, weight, together, tile=tile)
    linear(x, weight, default)
    for row in range(0, 21, 7):
        linear(x[row : row + 7], weight, alone[row : row + 7], tile=tile)
    assert error(together, default.double()) < 1e-6
    if device.type == "cuda":  # the interpreter's sums go through a library that orders them by the block's shape
        assert torch.equal(together, default)
        assert torch.equal(together, alone)


@pytest.mark.parametrize("tile", [STREAM, BLOCKS])
def test_rows_may_lie_apart(device: torch.device, tile: Tile) -> None:
    torch.manual_seed(4)
    weight = normal(64, 48, device=device)
    x, out, residual = (normal(9, 128, device=device) for _ in range(3))
    before = out.clone()
    linear(x[:, 16:64], weight, out[:, 32:96], residual=residual[:, 64:], tile=tile)
    expected = x[:, 16:64].double() @ weight.double().T + residual[:, 64:].double()
    assert error(out[:, 32:96], expected) < 2**-8
    assert torch.equal(out[:, :32], before[:, :32]) and torch.equal(out[:, 96:], before[:, 96:])


@pytest.mark.parametrize("tile", [STREAM, BLOCKS, TOKENS_FIRST])
@pytest.mark.parametrize("behind", [0, 2, 100])
def test_what_lies_behind_the_rows_reaches_none_of_them(device: torch.device, tile: Tile, behind: int) -> None:
    torch.manual_seed(5)
    weight, memory = normal(96, 64, device=device), normal(5 + behind, 64, device=device)
    memory[5:] = torch.nan
    out = poisoned(5 + behind, 96, device=device)
    linear(memory[:5], weight, out[:5], tile=tile)
    assert error(out[:5], memory[:5].double() @ weight.double().T) < 2**-8
    assert out[5:].isnan().all()
