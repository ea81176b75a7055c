from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.cublaslt.layers import GatedProduct, Unlaunched, problem_of
from slipstream_kernels.ops.gpu.cublaslt.product import Problem, products
from slipstream_kernels.ops.gpu.gate_up import interleave_gate_up
from slipstream_kernels.ops.gpu.linear import gated_linear_reference
from slipstream_kernels.ops.gpu.linear_tile import Tile
from support.emulated_cublaslt import WHOLE, emulated_cublaslt

TILE = Tile(outputs=64, tokens=16, depth=64, stages=3)


def bf16(*size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.bfloat16)


def test_a_problem_says_how_operands_lie() -> None:
    x, weight, stream = bf16(5, 64)[:, 16:48], bf16(48, 32), bf16(5, 96)[:, :48]
    problem = problem_of(x, weight, stream, stream, gated=False)
    assert problem == Problem(48, 32, 5, x_stride=64, out_stride=96, residual_stride=96)
    logits = problem_of(x, weight, torch.zeros(5, 48), None, gated=False)
    assert logits == Problem(48, 32, 5, x_stride=64, out_stride=48, float32=True)
    sums = problem_of(x, weight, bf16(5, 24), None, gated=True)
    assert sums == logits


def test_operands_that_are_not_aligned_are_a_tiles() -> None:
    weight = bf16(48, 32)
    assert problem_of(bf16(5, 64)[:, 4:36], weight, bf16(5, 48), None, gated=False) is None
    assert problem_of(bf16(5, 32), weight, bf16(5, 52)[:, :48], None, gated=False) is None
    assert problem_of(bf16(5, 32), weight, bf16(5, 48), bf16(5, 52)[:, :48], gated=False) is None
    assert problem_of(bf16(5, 32), weight, torch.zeros(5, 48), bf16(5, 48), gated=False) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="the library is emulated on the host")
def test_a_gated_layer_gates_a_products_sums() -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=generator).bfloat16() for size in ((16, 64), (64, 64)))
    ordered = interleave_gate_up(weight)
    (product,) = products(emulated_cublaslt(WHOLE, tile=TILE), Problem.packed(64, 64, 16, residual=False, float32=True))
    out, expected = bf16(16, 32), bf16(16, 32)
    gated_linear_reference(x, ordered, expected)
    GatedProduct(product).run(x, ordered, out)
    assert (out.float() - expected.float()).norm() < 4e-3 * expected.float().norm()


def test_nothing_is_launched_while_kernels_are_compiled_ahead() -> None:
    out = bf16(4, 16)
    Unlaunched().run(bf16(4, 32), bf16(16, 32), out)
    assert not out.any()
