from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kernels.linear_candidates import ROW_BUCKETS, candidates, compiled_alike, layers_8b
from benchmarks.kernels.tune_linear import Best, write_table
from slipstream_kernels.ops.gpu.linear_tile import SHARED_MEMORY, Tile
from slipstream_kernels.ops.gpu.tuning import read_table


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("rows", ROW_BUCKETS)
def test_candidates_fit_the_device(ranks: int, rows: int) -> None:
    for layer in layers_8b(ranks):
        tiles = candidates(layer, rows)
        assert len(tiles) == len(set(tiles)) >= 5
        for tile in tiles:
            assert tile.stages >= 2
            assert tile.shared_memory(layer.gated) <= SHARED_MEMORY
            assert tile.weight_rows(layer.gated) * tile.tokens <= 128 * 32 * tile.warps
            assert compiled_alike(tile, layer).weight_rows(layer.gated) == tile.weight_rows(layer.gated)


def test_tables_read_as_written_and_keep_what_was_not_measured(tmp_path: Path) -> None:
    qkv, _, gate_up, *_ = layers_8b()
    path = tmp_path / "table.json"
    first = Best(qkv, 16, Tile(48, 16, 128, 5, prefetch=2048), 12.3, 12.0)
    large = Best(qkv, 512, Tile(128, 256, 64, 4, 8, descriptors=True, persistent=True), 50.0, 45.0)
    write_table(path, [first, large], {})
    gated = Best(gate_up, 16, Tile(28, 16, 128, 10), 56.0, 58.0)
    faster = Best(qkv, 16, Tile(64, 16, 128, 5), 11.9, 12.0)
    write_table(path, [gated, faster], {})
    assert read_table(path.read_text()) == {
        (6144, 4096, False): {16: faster.tile, 512: large.tile},
        (14336, 4096, True): {16: gated.tile},
    }
