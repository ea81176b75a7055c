from __future__ import annotations

import json

import pytest
import torch

from slipstream_kernels.ops.gpu import tuning
from slipstream_kernels.ops.gpu.linear_tile import SHARED_MEMORY, Tile

SHAPES = [(6144, False), (4096, False), (14336, True), (128256, False), (384, False), (1024, True), (16, False)]


def entry(rows: int, outputs: int = 96, **tile: int) -> dict[str, object]:
    sizes = {"outputs": 32, "tokens": 16, "depth": 64, "stages": 3}
    return {"outputs": outputs, "inputs": 48, "gated": False, "rows": rows, "tile": sizes | tile, "microseconds": 1.0}


def test_the_table_gives_the_tile_of_the_next_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"tiles": [entry(64, tokens=64), entry(16), entry(128, outputs=80, tokens=128)]})
    monkeypatch.setattr(tuning, "_table", lambda device: tuning.read_table(text))
    device = torch.device("cpu")

    def tokens(rows: int, outputs: int = 96) -> int:
        return tuning.best_tile.__wrapped__(outputs, 48, rows, gated=False, device=device).tokens

    assert [tokens(rows) for rows in (1, 16, 17, 64, 5000)] == [16, 16, 64, 64, 64]
    assert tokens(1, outputs=80) == 128
    assert tuning.best_tile.__wrapped__(96, 64, 1, gated=False, device=device) == tuning.default_tile(96, 1, False)


@pytest.mark.parametrize(("outputs", "gated"), SHAPES)
@pytest.mark.parametrize("rows", [1, 16, 17, 64, 100, 256, 257, 8192])
def test_the_default_tile_fits_the_device(outputs: int, gated: bool, rows: int) -> None:
    tile = tuning.default_tile(outputs, rows, gated)
    assert tile.stages >= 3
    assert tile.shared_memory(gated) + 8 * 1024 <= SHARED_MEMORY
    assert tile.weight_rows(gated) * tile.tokens <= 128 * 32 * tile.warps, "sums take more than half of the registers"
    assert tile.tokens >= min(rows, 128)


def test_few_rows_are_shared_evenly() -> None:
    programs = [-(-outputs // tuning.even_share(outputs, 64)) for outputs in (4096, 6144, 28672)]
    assert programs == [128, 128, 512]
    assert tuning.even_share(16, 64) == 8


def test_a_device_finds_its_table() -> None:
    assert tuning.table_name("NVIDIA H200") == "nvidia_h200.json"


def test_weight_rows_of_a_gated_tile_are_gate_and_up() -> None:
    assert Tile(28, 16, 64, 3).weight_rows(gated=True) == 64
    assert Tile(56, 16, 64, 3).weight_rows(gated=True) == 128
    assert Tile(48, 16, 64, 3).weight_rows(gated=False) == 64
    assert Tile(64, 16, 64, 3, descriptors=True).weight_rows(gated=True) == 128
    assert Tile(16, 64, 64, 3, descriptors=True, tokens_first=True).weight_rows(gated=True) == 32
