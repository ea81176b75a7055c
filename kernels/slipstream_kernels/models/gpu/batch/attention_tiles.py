"""Tiles of `prefill_attention`: which rows of a pass lie in them, and how spans of rows are cut into them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.models.gpu.batch.pass_plan import Int32, PassPlan
from slipstream_kernels.ops.gpu.position_splits import BLOCK
from slipstream_kernels.ops.gpu.prefill_attention import PROGRAMS


def tiled_rows(kv_heads: int) -> int:
    """Rows, of a pass without trees and prefill, that as tiles fill the device."""
    return -(-PROGRAMS // kv_heads)


def fits_tiles(plan: PassPlan, kv_heads: int) -> bool:
    """Whether a pass has no trees and no prefill, and all its rows are best served as tiles."""
    if plan.rows < tiled_rows(kv_heads) or plan.has_trees or len(plan.prefills):
        return False
    return bool(fit_a_tile(plan.decodes, plan.prefills, kv_heads).all())


def fit_a_tile(decodes: Int32, tiles: Int32, kv_heads: int) -> npt.NDArray[np.bool_]:
    """Which spans (first row, rows, line, prefix length) are one row that is best served as a tile beside `tiles`.

    A program then reads all its blocks, so that these must be no more than its share of all blocks.
    """
    blocks = decodes[:, 3] // BLOCK
    total = int(blocks.sum()) + int((tiles[:, 3] // BLOCK).sum())
    fit: npt.NDArray[np.bool_] = (decodes[:, 1] == 1) & (blocks * PROGRAMS <= total * kv_heads)
    return fit


def most_tiles(rows: int, spans: int, tile_rows: int) -> int:
    """Tiles of `rows` rows in `spans` spans at most: one more for each piece that ends or bounds cut short."""
    bounds = rows // BLOCK + 2 * spans
    return min(rows, rows // tile_rows + bounds)


def _cut(spans: Int32, rows: int) -> tuple[Int32, Int32]:
    """Spans (first row, rows, ...) in parts of at most `rows` rows, and how many rows of its span lie before a part."""
    if not len(spans) or spans[:, 1].max() <= rows:
        return spans, np.zeros(len(spans), np.int32)
    parts = -(-spans[:, 1] // rows)
    before = (np.arange(parts.sum(), dtype=np.int32) - np.repeat(np.cumsum(parts) - parts, parts)) * rows
    cut = np.repeat(spans, parts, axis=0)
    cut[:, 0] += before
    cut[:, 1] = np.minimum(cut[:, 1] - before, rows)
    return cut, before


def tiles_of(spans: Int32, rows: int) -> Int32:
    """Spans (first row, rows, line, first position) in parts of at most `rows` rows, none across a bound of BLOCK."""
    # A span is widened to begin at a bound, cut at bounds, and its first block is narrowed again.
    lead = spans[:, 3] % BLOCK
    blocks, before = _cut(spans + np.stack([-lead, lead, 0 * lead, -lead], axis=1), BLOCK)
    blocks[:, 3] += before
    first = before == 0
    blocks[first] += np.stack([lead, -lead, 0 * lead, lead], axis=1)
    tiles, before = _cut(blocks, rows)
    tiles[:, 3] += before
    return tiles
