"""Linear layers of an 8B model, and the tiles worth measuring for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from triton import next_power_of_2

from slipstream_kernels.ops.gpu.linear_tile import SHARED_MEMORY, Tile
from slipstream_kernels.ops.gpu.tuning import even_share, filled

ROW_BUCKETS = (1, 16, 32, 64, 96, 128, 192, 256, 384, 512, 2048, 4096)

COMPILER_ROOM = 8 * 1024
"""Bytes of shared memory left for barriers and the reordering of results."""

PREFETCHES = (0, 1024, 4096)
"""Bytes of each weight row that are asked for early."""

_STREAM_STEPS = ((256, 200), (128, 200), (128, 104), (64, 104))
"""(depth, KB of stages): one program a multiprocessor, or two."""

_BLOCK_STEPS = ((256, 208), (128, 200), (128, 104), (64, 104))

_LARGE = (
    Tile(128, 256, 64, 4, 8, descriptors=True, persistent=True),
    Tile(128, 256, 64, 4, 8, descriptors=True),
    Tile(128, 256, 64, 3, 8, descriptors=True, persistent=True),
    Tile(256, 128, 64, 4, 8, descriptors=True, persistent=True),
    Tile(128, 128, 64, 6, 8, descriptors=True, persistent=True),
    Tile(128, 128, 64, 3, 8, descriptors=True),
    Tile(128, 128, 64, 3, 4, descriptors=True),
    Tile(128, 256, 64, 4, 8),
    Tile(128, 128, 64, 3, 4),
)
"""Sizes of `outputs` are those of weight rows: a gated layer has half as many."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer as a pass calls it."""

    name: str
    outputs: int
    inputs: int
    count: int
    """Calls a pass."""

    gated: bool = False
    residual: bool = False
    logits: bool = False
    """Float32 outputs of few rows: prompts want the logits of their last row alone."""

    @property
    def products(self) -> int:
        """Weight rows of an output."""
        return 2 if self.gated else 1

    @property
    def weight_rows(self) -> int:
        return self.outputs * self.products

    @property
    def weight_bytes(self) -> int:
        return self.weight_rows * self.inputs * 2

    def measured_at(self, rows: int) -> bool:
        return rows <= 512 or not self.logits


def layers_8b(ranks: int = 1) -> list[Layer]:
    """One rank's share of Llama-3.1-8B's linear layers under tensor parallelism."""
    return [
        Layer("qkv", 6144 // ranks, 4096, 32),
        Layer("o", 4096, 4096 // ranks, 32, residual=True),
        Layer("gate_up", 14336 // ranks, 4096, 32, gated=True),
        Layer("down", 4096, 14336 // ranks, 32, residual=True),
        Layer("lm_head", 128256 // ranks, 4096, 1, logits=True),
    ]


def layers_eagle3(draft_vocab: int = 32000) -> list[Layer]:
    """Linear layers of an EAGLE-3 head of Llama-3.1-8B whose shapes are not the target's."""
    return [
        Layer("fc", 4096, 3 * 4096, 1),
        Layer("qkv", 6144, 2 * 4096, 1),
        Layer("lm_head", draft_vocab, 4096, 1, logits=True),
    ]


def _fits(tile: Tile, gated: bool) -> bool:
    return tile.stages >= 2 and tile.shared_memory(gated) + COMPILER_ROOM <= SHARED_MEMORY


def _few_rows(layer: Layer, tokens: int) -> Iterator[Tile]:
    """Tiles of `tokens` rows: even shares of the outputs or whole blocks, in one program a multiprocessor or two."""
    for weight_rows in (64, 128):
        whole = weight_rows // layer.products
        for depth, room in _STREAM_STEPS:
            yield filled(Tile(even_share(layer.outputs, whole), tokens, depth, 1), layer.gated, room * 1024)
        for depth, room in _BLOCK_STEPS:
            yield filled(Tile(whole, tokens, depth, 1, descriptors=True), layer.gated, room * 1024)
    for weight_rows in (32, 64, 128) if tokens == 64 else ():
        for depth, room in _BLOCK_STEPS[:3]:
            tile = Tile(weight_rows // layer.products, 64, depth, 1, descriptors=True, tokens_first=True)
            yield filled(tile, layer.gated, room * 1024)


def _large(layer: Layer) -> list[Tile]:
    return [replace(tile, outputs=tile.outputs // layer.products) for tile in _LARGE]


def candidates(layer: Layer, rows: int) -> list[Tile]:
    """Tiles worth measuring for `rows` rows, none of which needs more shared memory or registers than there are."""
    if rows > 256:
        return _large(layer)
    height = max(next_power_of_2(rows), 16)
    heights = {height} | ({height // 2} if rows > 64 else set()) | ({height // 4} if height > max(rows, 16) else set())
    tiles = dict.fromkeys(tile for tokens in sorted(heights) for tile in _few_rows(layer, tokens))
    if rows > 128:
        tiles |= dict.fromkeys(_large(layer))
    return [tile for tile in tiles if _fits(tile, layer.gated)]


def compiled_alike(tile: Tile, layer: Layer) -> Tile:
    """A tile that stands for all that share one compiled kernel with `tile`: some sizes are arguments of it."""
    prefetch = min(tile.prefetch, 1)
    if tile.descriptors:
        return replace(tile, prefetch=prefetch)
    return replace(tile, outputs=tile.weight_rows(layer.gated) // layer.products, prefetch=prefetch)
