from __future__ import annotations

from pathlib import Path

from benchmarks.kernels.library_timing import Comparison, problem_at
from benchmarks.kernels.linear_candidates import Layer
from benchmarks.kernels.tune_library import layers_of, measured_at, summary, write_table
from slipstream_kernels.ops.gpu.cublaslt.bindings import MatmulAlgo
from slipstream_kernels.ops.gpu.cublaslt.product import Algorithm, Descriptors, Problem, Product
from slipstream_kernels.ops.gpu.cublaslt.table import LayerShape, entry_for, read_algorithms
from slipstream_kernels.ops.gpu.linear_tile import Tile
from support.emulated_cublaslt import WHOLE, emulated_cublaslt
from support.models import make_tiny_model

TILE = Tile(64, 64, 64, 3)
O = Layer("o", 4096, 4096, 32, residual=True)
GATED = Layer("gate_up", 14336, 4096, 32, gated=True)


def product(layer: Layer, rows: int, algorithm: Algorithm = WHOLE) -> Product:
    descriptors = Descriptors(emulated_cublaslt(algorithm, tile=TILE), problem_at(layer, rows))
    return Product(descriptors, algorithm, MatmulAlgo())


def compared(layer: Layer, rows: int, own: float, **library: float) -> Comparison:
    """With algorithms of tiles by their names' digits."""
    times = {product(layer, rows, Algorithm(66, int(name[1:]), 35)): time for name, time in library.items()}
    return Comparison(layer, rows, TILE, own, len(times), times)


def test_the_library_is_chosen_where_it_is_worth_it() -> None:
    one = compared(O, 384, 27.0, t1=24.0, t2=22.0, t3=27.2, t4=40.0)
    assert [p.algorithm.tile for p in one.near(5)] == [2, 1, 3]
    assert [p.algorithm.tile for p in one.near(1)] == [2]
    one.choose_alone()
    assert one.chosen is one.best
    assert one.time == 22.0
    for other in (compared(O, 384, 22.2, t2=22.0), compared(O, 384, 22.2)):
        other.choose_alone()
        assert other.chosen is None
        assert other.time == 22.2


def test_the_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "tuned" / "table.json"
    found = [compared(O, 384, 27.0, t2=22.0), compared(O, 96, 15.0, t2=16.0), compared(GATED, 192, 90.0, t7=80.0)]
    for one in found:
        one.choose_alone()
    write_table(path, found[2:], {"device": "a"})
    write_table(path, found[:2], {"device": "b"})
    table = read_algorithms(path.read_text(encoding="utf-8"))
    entries = [entry_for(table, LayerShape(4096, 4096), rows) for rows in (96, 384)]
    assert [(e.rows, e.residual, e.algorithm and e.algorithm.tile) for e in entries if e] == [
        (96, True, None),
        (384, True, 2),
    ]
    gated = entry_for(table, LayerShape(28672, 4096, float32=True, gated=True), 150)
    assert gated is not None, "other shapes stay"
    assert gated.algorithm == Algorithm(66, 7, 35)


def test_problems_are_as_passes_ask_for_them() -> None:
    assert problem_at(O, 96) == Problem(4096, 4096, 96, 4096, 4096, 4096)
    assert problem_at(O, 96, residual=False) == Problem(4096, 4096, 96, 4096, 4096)
    assert problem_at(GATED, 96) == Problem(28672, 4096, 96, 4096, 28672, float32=True)
    assert measured_at(O, 2048)
    assert not measured_at(GATED, 768)


def test_a_models_layers_are_those_of_its_folder(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, seed=1, vocab_size=300, max_context=128, tied=False)
    layers = {layer.name: (layer.weight_rows, layer.inputs) for layer in layers_of(folder)}
    assert layers == {
        "qkv": (256, 128), "o": (128, 128), "gate_up": (384, 128), "down": (128, 192), "lm_head": (300, 128),
    }  # fmt: skip


def test_the_summary_stars_what_is_chosen() -> None:
    one = compared(O, 384, 27.0, t2=22.0)
    one.choose_alone()
    text = summary({("o", 384): one}, (96, 384))
    assert "| 384  | 27.0 / 22.0 * |" in text
    assert "| 96   | -" in text
