from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

from slipstream_kernels.ops.gpu import linear as linear_module
from slipstream_kernels.ops.gpu.cublaslt import choice as choice_module
from slipstream_kernels.ops.gpu.cublaslt.choice import LibraryChoice, layer_of, library_choice
from slipstream_kernels.ops.gpu.cublaslt.layers import GatedProduct, Unlaunched
from slipstream_kernels.ops.gpu.cublaslt.product import Algorithm, Problem, Product, cublaslt, products
from slipstream_kernels.ops.gpu.cublaslt.table import LayerShape, Measured
from slipstream_kernels.ops.gpu.linear import gated_linear, linear
from slipstream_kernels.ops.gpu.tuning import best_tile
from support.emulated_cublaslt import HALVES, WHOLE, EmulatedFunctions, emulated_cublaslt

OUTPUTS, INPUTS, ROWS = 64, 192, 40
CPU = torch.device("cpu")
emulated = pytest.mark.skipif(torch.cuda.is_available(), reason="the library is emulated on the host")


def table(algorithm: Algorithm | None, *, float32: bool = False, gated: bool = False) -> LibraryChoice:
    """A choice on the host whose layer takes an algorithm at up to ROWS rows."""
    outputs = OUTPUTS * (2 if gated else 1)
    tile = best_tile(OUTPUTS, INPUTS, choice_module.CHECKED_ROWS, gated=gated, device=CPU)
    tile = replace(tile, outputs=tile.outputs * (2 if gated else 1))  # weight rows, which a plain layer has
    shape = LayerShape(outputs, INPUTS, float32, gated)
    library = emulated_cublaslt(WHOLE, HALVES, tile=tile)
    return LibraryChoice(library, {shape: (Measured(ROWS, not float32, algorithm),)})


def operands(rows: int = ROWS, outputs: int = OUTPUTS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x, weight, out)"""
    generator = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(n, INPUTS, generator=generator).bfloat16() for n in (rows, outputs))
    return x, weight, torch.zeros(rows, OUTPUTS, dtype=torch.bfloat16)


@emulated
def test_the_tables_algorithm_is_taken_once_its_bits_are_a_tiles(caplog: pytest.LogCaptureFixture) -> None:
    choice = table(WHOLE)
    x, weight, out = operands()
    with caplog.at_level(logging.INFO):
        layer = choice.layer(x, weight, out, out)
    assert isinstance(layer, Product)
    assert layer.algorithm == WHOLE
    assert "linear layer 64 x 192, 40 rows: cuBLASLt" in caplog.text
    checked = _products(choice)
    assert checked == 4
    assert choice.layer(x, weight, out, out) is layer
    assert _products(choice) == checked, "it is checked once"
    assert [one for _, _, one in choice.used] == [layer]


@emulated
@pytest.mark.parametrize(
    ("algorithm", "told"), [(HALVES, "leaves other bits"), (Algorithm(1, 2, 3), "does not have"), (None, "")]
)
def test_anything_else_is_a_tiles(caplog: pytest.LogCaptureFixture, algorithm: Algorithm | None, told: str) -> None:
    choice = table(algorithm)
    x, weight, out = operands()
    assert choice.layer(x, weight, out) is None
    assert told in caplog.text
    caplog.clear()
    assert choice.layer(x, weight, out) is None
    assert not caplog.text, "it is told once"
    assert choice.used == []


@emulated
def test_more_rows_than_measured_are_a_tiles() -> None:
    assert table(WHOLE).layer(*operands(ROWS + 1)) is None


@emulated
def test_a_call_that_fails_leaves_the_layer_to_a_tile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    choice = table(WHOLE)
    monkeypatch.setattr(EmulatedFunctions, "cublasLtMatmul", lambda *arguments: 14)
    assert choice.layer(*operands()) is None
    assert "cublasLtMatmul returned status 14" in caplog.text


@emulated
def test_memory_that_is_not_there_leaves_the_layer_to_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*arguments: object, **named: object) -> None:
        raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr(choice_module, "operands", out_of_memory)
    assert table(WHOLE).layer(*operands()) is None


@emulated
def test_nothing_is_checked_while_kernels_are_compiled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice_module, "is_compiling_ahead", lambda: True)
    choice = table(WHOLE)
    assert isinstance(choice.layer(*operands()), Unlaunched)
    assert _products(choice) == 0
    monkeypatch.undo()
    assert isinstance(choice.layer(*operands()), Product)


@emulated
def test_a_gated_layer_has_a_choice_of_its_own() -> None:
    choice = table(WHOLE, float32=True, gated=True)
    x, weight, out = operands(outputs=2 * OUTPUTS)
    assert choice.layer(x, weight, torch.zeros(ROWS, 2 * OUTPUTS)) is None, "a plain layer of that shape"
    assert isinstance(choice.layer(x, weight, out, gated=True), GatedProduct)


@emulated
@pytest.mark.parametrize("gated", [False, True])
def test_linear_layers_go_by_the_choice(monkeypatch: pytest.MonkeyPatch, gated: bool) -> None:
    choice = table(WHOLE, float32=gated, gated=gated)
    x, weight, out = operands(outputs=OUTPUTS * (2 if gated else 1))
    want, tile = torch.empty_like(out), best_tile(OUTPUTS, INPUTS, 64, gated=gated, device=CPU)
    (gated_linear if gated else linear)(x, weight, want, tile=tile)
    assert _products(choice) == 0
    monkeypatch.setattr(linear_module, "library_choice", lambda device: choice)
    (gated_linear if gated else linear)(x, weight, out)
    assert _products(choice) == 5
    assert torch.equal(out, want)
    if not gated:
        linear(x, weight, out, bias=torch.zeros(OUTPUTS, dtype=torch.bfloat16))
        assert _products(choice) == 5, "a layer with a bias is a tile's"


def test_the_host_has_no_choice() -> None:
    assert library_choice(CPU).library is None
    assert library_choice(CPU).layer(*operands()) is None


@pytest.mark.gpu
@pytest.mark.parametrize(("float32", "gated"), [(False, False), (True, False), (True, True)])
def test_bits_are_a_tiles_on_a_gpu(device: torch.device, float32: bool, gated: bool) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    library = cublaslt(device)
    assert library is not None
    rows, outputs, inputs = 192, 4096, 1024
    problem = Problem.packed(outputs, inputs, rows, residual=not float32, float32=float32)
    found = products(library, problem)
    assert found
    shape = LayerShape(outputs, inputs, float32, gated)
    x, weight = (torch.randn(n, inputs, device=device).bfloat16() for n in (rows, outputs))
    columns = outputs // 2 if gated else outputs
    residual = None if float32 else torch.randn(rows, columns, device=device).bfloat16()
    dtype = torch.float32 if float32 and not gated else torch.bfloat16
    want, got = (torch.full((rows, columns), torch.nan, dtype=dtype, device=device) for _ in range(2))
    tile = best_tile(columns, inputs, 64, gated=gated, device=device)
    if gated:
        gated_linear(x, weight, want, tile=tile)
    else:
        linear(x, weight, want, residual=residual, tile=tile)
    taken = 0
    for product in found:
        choice = LibraryChoice(library, {shape: (Measured(rows, not float32, product.algorithm),)})
        layer = choice.layer(x, weight, got, residual, gated=gated)
        if layer is None:
            continue
        taken += 1
        for _ in range(2):
            layer.run(x, weight, got, residual)
            assert torch.equal(got, want)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert choice.layer(x, weight, got, residual, gated=gated) is layer
            layer.run(x, weight, got, residual)
            assert choice.layer(x[:96], weight, got[:96], None, gated=gated) is None, "not met before"
        got.fill_(torch.nan)
        graph.replay()
        assert torch.equal(got, want)
    if torch.cuda.get_device_name(device) == "NVIDIA H200":
        assert taken > 0


def test_a_product_is_a_layer_of_its_own() -> None:
    pending = Unlaunched()
    assert layer_of(pending, gated=False) is pending
    assert layer_of(pending, gated=True) == GatedProduct(pending)


def _products(choice: LibraryChoice) -> int:
    assert choice.library is not None
    functions = choice.library.functions
    assert isinstance(functions, EmulatedFunctions)
    return functions.products
