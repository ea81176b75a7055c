from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.cublaslt.bit_check import KINDS, operands, outputs_of, same_bits
from slipstream_kernels.ops.gpu.cublaslt.layers import GatedProduct
from slipstream_kernels.ops.gpu.cublaslt.product import Problem, products
from slipstream_kernels.ops.gpu.linear_tile import Tile
from support.emulated_cublaslt import HALVES, WHOLE, emulated_cublaslt

TILE = Tile(outputs=64, tokens=16, depth=64, stages=3)
CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_operands_are_the_same_whatever_else_is_drawn(kind: str) -> None:
    one = operands(kind, 5, 32, 48, residual=True, seed=1, device=CPU)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    other = operands(kind, 5, 32, 48, residual=True, seed=1, device=CPU)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.weight, other.weight)
    assert one.residual is not None
    assert one.residual.shape == (5, 32)
    assert not torch.equal(operands(kind, 5, 32, 48, residual=True, seed=2, device=CPU).x, one.x)


@pytest.mark.parametrize("inputs", [48, 50])
def test_sums_cancel(inputs: int) -> None:
    made = operands("cancelling", 8, 16, inputs, residual=False, seed=3, device=CPU)
    assert not (made.x.double() @ made.weight.double().T).any()
    assert (made.x.float().cumsum(1)[:, :-1] != 0).any(dim=1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", ["residual", "float32", "gated"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="the library is emulated on the host")
def test_a_sum_in_two_halves_shows(kind: str, layer: str) -> None:
    gated, residual = layer == "gated", layer == "residual"
    float32 = not residual
    rows, outputs, inputs = 40, 64, 192
    library = emulated_cublaslt(WHOLE, HALVES, tile=TILE)
    given = operands(kind, rows, outputs, inputs, residual=residual, seed=0, device=CPU)
    problem = Problem.packed(outputs, inputs, rows, residual=residual, float32=float32)
    out = outputs_of(given, float32=float32, gated=gated)
    tile = Tile(outputs=32, tokens=16, depth=64, stages=3) if gated else TILE
    found = [
        same_bits(GatedProduct(product) if gated else product, given, out, tile, gated=gated)
        for product in products(library, problem)
    ]
    assert found[0]
    assert not found[1] or (kind == "normal" and layer != "float32"), "which roundings to bfloat16 may hide"
