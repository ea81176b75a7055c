"""Tiles of attention: which rows of a pass lie in them, and how spans of rows are cut into those of prompts."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slipstream_kernels.models.gpu.batch.pass_plan import Int32, PassPlan
from slipstream_kernels.ops.gpu.position_splits import BLOCK
from slipstream_kernels.ops.gpu.prefill_attention import PROGRAMS
from slipstream_kernels.ops.gpu.tree_attention import PROGRAMS as TREE_PROGRAMS


def tiled_rows(kv_heads: int) -> int:
    """Rows, of a pass without trees and prefill, that as tiles fill the device."""
    return -(-PROGRAMS // kv_heads)


def tiled_trees(kv_heads: int) -> int:
    """Requests, of a pass with trees and without prefill, that as tiles fill the device."""
    return -(-TREE_PROGRAMS // kv_heads)


def fits_tiles(plan: PassPlan, kv_heads: int) -> bool:
    """Whether all rows that decode are best served as tiles: with trees beside prompts too, without them alone."""
    if plan.has_trees:
        return len(plan.decodes) >= tiled_trees(kv_heads) and bool(_balanced(plan.decodes, 0, kv_heads).all())
    if plan.rows < tiled_rows(kv_heads) or len(plan.prefills):
        return False
    return bool(fit_a_tile(plan.decodes, plan.prefills, kv_heads).all())


def fit_a_tile(decodes: Int32, tiles: Int32, kv_heads: int) -> npt.NDArray[np.bool_]:
    """Which spans (first row, rows, line, prefix length) are one row that is best served as a tile beside `tiles`."""
    fit: npt.NDArray[np.bool_] = decodes[:, 1] == 1
    return fit & _balanced(decodes, int((tiles[:, 3] // BLOCK).sum()), kv_heads)


def _balanced(decodes: Int32, others: int, kv_heads: int) -> npt.NDArray[np.bool_]:
    """Of which spans a program may read all blocks: they are no more than its share of all, `others` among them."""
    blocks = decodes[:, 3] // BLOCK
    balanced: npt.NDArray[np.bool_] = blocks * PROGRAMS <= (int(blocks.sum()) + others) * kv_heads
    return balanced


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
