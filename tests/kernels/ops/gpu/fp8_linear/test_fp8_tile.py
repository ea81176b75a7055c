from __future__ import annotations

from slipstream_kernels.ops.gpu.fp8_linear.fp8_tile import CHUNK, Fp8Tile, fp8_tile

WEIGHT_ROWS = (256, 4096, 6144, 16384, 28672)


def shared_memory(tile: Fp8Tile) -> int:
    return tile.stages * tile.chunks * (tile.tokens + tile.outputs) * CHUNK


def test_tiles_are_few_and_fit() -> None:
    """Each is compiled at start."""
    for outputs in WEIGHT_ROWS:
        tiles = {fp8_tile(rows, outputs) for rows in range(1, 4097)}
        assert 4 <= len(tiles) <= 7
        assert all(shared_memory(tile) <= 200 * 1024 for tile in tiles)


def test_few_rows_have_tiles_of_their_size_and_weights_on_their_way() -> None:
    assert [fp8_tile(rows, 4096).tokens for rows in (1, 16, 17, 33, 64)] == [16, 16, 32, 64, 64]
    for outputs in WEIGHT_ROWS:
        tile = fp8_tile(1, outputs)
        alone = outputs <= tile.outputs * 132
        assert tile.stages * tile.chunks * tile.outputs * CHUNK >= (128 if alone else 64) * 1024
        assert tile.prefetch


def test_tiles_grow_while_their_programs_fill_the_multiprocessors() -> None:
    def sizes(outputs: int) -> list[tuple[int, int]]:
        return [(tile.tokens, tile.outputs) for rows in (128, 256, 512, 2048) for tile in [fp8_tile(rows, outputs)]]

    assert sizes(4096) == [(64, 64), (64, 64), (128, 128), (256, 128)]
    assert sizes(6144) == [(64, 64), (128, 128), (128, 64), (256, 128)]  # of 512 rows: three programs each at once
    assert sizes(28672) == [(128, 128), (128, 64), (128, 128), (256, 128)]
