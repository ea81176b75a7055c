from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks.kernels import check_fp8_linear
from benchmarks.kernels.check_fp8_linear import (
    BFLOAT16,
    CHECKED_ROWS,
    DEFAULT,
    SMALL,
    TIMED_ROWS,
    WEIGHT_ONLY,
    Case,
    candidates,
    check,
    main,
    passes,
    report,
    time_layer,
)
from slipstream_kernels.ops.gpu.fp8_linear.fp8_tile import CHUNK, Fp8Tile, fp8_tile

CPU = torch.device("cpu")


def test_a_small_check_is_written(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    assert main(["--small", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert [each["layer"] for each in found["checks"]] == ["o", "gate_up", "norm"]
    assert [each["compared"] for each in found["checks"]] == [6, 6, 6]
    assert not any(each["failed"] for each in found["checks"])
    assert all(each["error"] < 1e-5 for each in found["checks"][:2])


def test_a_row_that_depends_on_the_others_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    products = check_fp8_linear.fp8_products

    def beside(codes: torch.Tensor, scales: torch.Tensor, weight: object, out: torch.Tensor, **more: object) -> None:
        products(codes, scales, weight, out, **more)  # type: ignore[arg-type]
        out[-1] += float(len(out)) * out.abs().max()

    monkeypatch.setattr(check_fp8_linear, "fp8_products", beside)
    found = check(Case.random(SMALL[0], 5, CPU), (1, 5))
    assert "first 1 rows, as the layer chooses" in found["differing"]
    assert any("scheme" in each for each in found["differing"])


def test_every_way_is_timed() -> None:
    def measured(calls: list[Callable[[], object]]) -> float:
        calls[0]()
        return float(len(calls))

    cases = [Case.random(layer, 2, CPU) for layer in SMALL]
    times = [time_layer(case, 2, measured) for case in cases]
    for entry in times:
        assert not entry["failed"]
        assert {BFLOAT16, WEIGHT_ONLY, DEFAULT, "quantise"} < set(entry["microseconds"])
        assert entry["best"]
    (sums,) = passes(times)
    assert (sums[DEFAULT], sums[BFLOAT16]) == (0.002, 0.004)
    report([check(cases[0], ())], times)


def test_tiles_worth_a_look_fit_and_begin_with_the_layers_own() -> None:
    for outputs in (4096, 6144, 28672):
        for rows in {*CHECKED_ROWS, *TIMED_ROWS}:
            tiles = candidates(rows, outputs)
            assert tiles[0] == fp8_tile(rows, outputs)
            assert 4 <= len(tiles) <= 9
            assert all(shared_memory(tile) <= 216 * 1024 for tile in tiles)


def shared_memory(tile: Fp8Tile) -> int:
    return tile.stages * tile.chunks * (tile.tokens + tile.outputs) * CHUNK
