from __future__ import annotations

import gc

import pytest
import torch

from slipstream_kernels.ops.gpu.cublaslt.bindings import CublasLtError
from slipstream_kernels.ops.gpu.cublaslt.product import CublasLt, Descriptors, Problem, Product, cublaslt, products
from slipstream_kernels.ops.gpu.linear import linear_reference
from slipstream_kernels.ops.gpu.linear_tile import Tile
from support.emulated_cublaslt import HALVES, ROOMY, SPLIT, WHOLE, EmulatedFunctions, emulated_cublaslt

TILE = Tile(outputs=64, tokens=16, depth=64, stages=3)


@pytest.fixture
def library(device: torch.device) -> CublasLt:
    """The real one where there is a GPU."""
    real = cublaslt(torch.device("cuda", torch.cuda.current_device())) if device.type == "cuda" else None
    return real or emulated_cublaslt(WHOLE, tile=TILE)


def randn(device: torch.device, *size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).bfloat16().to(device)


def first(library: CublasLt, problem: Problem) -> Product:
    found = products(library, problem)
    assert found
    return found[0]


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    return float((out.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("residual", [False, True])
def test_a_product_is_a_linear_layer(device: torch.device, library: CublasLt, residual: bool) -> None:
    rows, outputs, inputs = 48, 128, 192
    x, weight = randn(device, rows, inputs), randn(device, outputs, inputs)
    added = randn(device, rows, outputs) if residual else None
    out, expected = (torch.empty(rows, outputs, dtype=torch.bfloat16, device=device) for _ in range(2))
    linear_reference(x, weight, expected, residual=added)
    product = first(library, Problem.packed(outputs, inputs, rows, residual=residual, float32=False))
    product.run(x, weight, out, added)
    assert relative_error(out, expected) < 4e-3
    if added is not None:
        product.run(x, weight, added, added)  # in place
        assert relative_error(added, expected) < 4e-3


def test_sums_may_stay_float32(device: torch.device, library: CublasLt) -> None:
    x, weight = randn(device, 32, 128), randn(device, 64, 128)
    out, expected = torch.empty(32, 64, device=device), torch.empty(32, 64, dtype=torch.float64, device=device)
    linear_reference(x, weight, expected)
    first(library, Problem.packed(64, 128, 32, residual=False, float32=True)).run(x, weight, out)
    assert relative_error(out, expected) < 1e-5


def test_rows_lie_as_far_apart_as_one_likes(device: torch.device, library: CublasLt) -> None:
    x, weight = randn(device, 32, 256)[:, 64:192], randn(device, 64, 128)
    residual, out = randn(device, 32, 96)[:, 16:80], torch.zeros(32, 128, dtype=torch.bfloat16, device=device)
    expected = torch.empty(32, 64, dtype=torch.bfloat16, device=device)
    linear_reference(x, weight, expected, residual=residual)
    problem = Problem(64, 128, 32, x_stride=256, out_stride=128, residual_stride=96)
    first(library, problem).run(x, weight, out[:, 32:96], residual)
    assert relative_error(out[:, 32:96], expected) < 4e-3
    assert not out[:, :32].any()
    assert not out[:, 96:].any()


def test_what_splits_or_needs_a_workspace_is_passed_over() -> None:
    library = emulated_cublaslt(SPLIT, ROOMY, HALVES, WHOLE, tile=TILE)
    found = products(library, Problem.packed(64, 128, 16, residual=False, float32=False))
    assert [product.algorithm for product in found] == [HALVES, WHOLE]


def test_an_algorithm_serves_the_problems_that_it_does() -> None:
    library = emulated_cublaslt(WHOLE, tile=TILE, least_rows=16)
    product = first(library, Problem.packed(64, 128, 32, residual=False, float32=False))
    fewer = product.of(Problem.packed(64, 128, 16, residual=True, float32=False))
    assert fewer is not None
    assert fewer.algorithm == WHOLE
    assert product.of(Problem.packed(64, 128, 8, residual=False, float32=False)) is None
    assert products(library, Problem.packed(64, 128, 8, residual=False, float32=False)) == []


def test_descriptors_are_destroyed_with_what_has_them() -> None:
    library = emulated_cublaslt(WHOLE, tile=TILE)
    functions = library.functions
    assert isinstance(functions, EmulatedFunctions)
    product = first(library, Problem.packed(64, 128, 16, residual=True, float32=False))
    assert functions.objects == 5
    del product
    gc.collect()
    assert functions.objects == 0


def test_a_problem_without_descriptors_is_an_error() -> None:
    with pytest.raises(CublasLtError, match="cublasLtMatrixLayoutCreate returned status 7"):
        Descriptors(emulated_cublaslt(WHOLE, tile=TILE), Problem(64, 128, 16, x_stride=64, out_stride=64))


@pytest.mark.gpu
def test_a_product_is_captured(device: torch.device, library: CublasLt) -> None:
    rows, size = 384, 4096
    x, weight, out = randn(device, rows, size), randn(device, size, size), randn(device, rows, size)
    expected = torch.empty_like(out)
    product = first(library, Problem.packed(size, size, rows, residual=False, float32=False))
    product.run(x, weight, expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product.run(x, weight, out)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)
