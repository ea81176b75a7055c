"""Tiles chosen by the time of whole passes, where kernels overlap and weights are asked for ahead of their kernels.

A kernel measured alone follows copies of itself. In a pass it follows smaller ones, during which nothing reads weights
unless the programs of the next linear layer are there already and ask for theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar

import torch

from benchmarks.kernels.attention_scenes import Pass
from benchmarks.kernels.attention_speed import random_passes
from benchmarks.kernels.linear_candidates import PREFETCHES, Layer
from benchmarks.kernels.linear_operands import Operands, microseconds
from slipstream_kernels.ops.gpu.cublaslt.layers import LibraryLayer
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.prefix_attention import prefix_attention
from slipstream_kernels.ops.gpu.rms_norm import rms_norm
from slipstream_kernels.ops.gpu.rotary import rotary_write
from slipstream_kernels.ops.gpu.tail_attention import tail_attention
from slipstream_kernels.token_tree import MAX_ROWS

TUNED_LAYERS = 12
"""Layers of the passes by which tiles are chosen: 5 GB of an 8B model's weights, far more than the cache."""

Cut = Tile | LibraryLayer
C = TypeVar("C", bound=Cut)

HEAD_DIM = 128
KV_HEADS = 8
CONTEXT = 1000
"""Positions in front of the rows that attend, which are those of one tree."""


class Passes:
    """Passes over `every` layer kind, with norms, rotations and a tree's attention between them."""

    def __init__(self, every: Sequence[Operands]) -> None:
        self._body = {operands.layer.name: operands for operands in every if operands.layer.count > 1}
        self._heads = [operands for operands in every if operands.layer.count == 1]
        qkv = self._body["qkv"]
        rows, self._hidden = qkv.x.shape
        self._gain = torch.randn(self._hidden, device="cuda").bfloat16()
        self._normed = torch.empty_like(qkv.x)
        heads = qkv.layer.outputs // HEAD_DIM - 2 * KV_HEADS
        self._q = torch.empty(rows, heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        self._kv = torch.empty(2, KV_HEADS, rows, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        self._slots = torch.arange(rows, device="cuda", dtype=torch.int32)
        self._table = torch.randn(rows, HEAD_DIM, device="cuda")

    @property
    def names(self) -> list[str]:
        """The layer kinds of the body, in order."""
        return list(self._body)

    def layer(self, name: str) -> Layer:
        """A layer kind of the body."""
        return self._body[name].layer

    @property
    def layers(self) -> int:
        return self._body["qkv"].layer.count

    def milliseconds(self, tiles: Mapping[str, Cut], rows: int, layers: int, *, alone: bool = False) -> float:
        """Time of `layers` layers and, where all are asked for, of the head; linear layers only where `alone`."""
        calls: list[Callable[[], object]] = []
        for index in range(layers):
            for name, operands in self._body.items():
                if not alone and name in ("qkv", "gate_up"):
                    calls.append(partial(self._norm, operands.x[:rows]))
                calls.append(partial(operands.run, rows, tiles[name], index))
                if not alone and name == "qkv":
                    calls.append(partial(self._rotate, operands.out[:rows]))
                    calls += self._attention(rows, index)
        if layers == self.layers:
            heads = [operands for operands in self._heads if operands.layer.name in tiles]
            calls += [partial(operands.run, rows, tiles[operands.layer.name]) for operands in heads]
        for call in calls[: len(calls) // layers]:  # no kernel is compiled while a graph is captured
            call()
        return microseconds(calls, replays=9) * len(calls) / 1e3

    def _norm(self, x: torch.Tensor) -> None:
        rms_norm(x, self._gain, self._normed[: len(x)], 1e-5)

    def _rotate(self, qkv: torch.Tensor) -> None:
        slots, rows = self._slots[: len(qkv)], len(qkv)
        rotary_write(qkv, slots, slots, self._table, self._q[:rows], self._kv[0], self._kv[1])

    def _attention(self, rows: int, index: int) -> list[Callable[[], object]]:
        """Of a tree of `rows` rows; of none where they are more than a tree has."""
        return [_attention(rows)[index % len(_attention(rows))]] if rows <= MAX_ROWS else []


@cache
def _attention(rows: int) -> list[Callable[[], object]]:
    """The attention of each layer."""
    every = random_passes(1, CONTEXT, nodes=rows - 1)
    columns = 16 if rows == 1 else 64
    segments, offsets = every[0].segments(columns)
    partials, out = every[0].partials(), torch.empty_like(every[0].q)

    def attend(one: Pass) -> None:
        kv = one.q, one.keys, one.values, one.page_table, one.page_size
        prefix_attention(*kv, segments, offsets, partials, columns=columns)
        own = one.lines, one.prefix_lengths, one.paths, one.depths, one.write_slots, one.decode_rows
        tail_attention(*kv, *own, partials, out)

    return [partial(attend, one) for one in every]


def variants(tiles: Sequence[Tile]) -> list[Tile]:
    """`tiles` with every amount of weights asked for ahead."""
    return [replace(tile, prefetch=size) for tile in tiles for size in PREFETCHES if not (size and tile.persistent)]


def descend(passes: Passes, options: Mapping[str, Sequence[C]], rows: int, rounds: int = 2) -> dict[str, C]:
    """Starting from the first of `options`, replace one layer kind's cut at a time by that of the fastest pass."""
    tiles = {name: options[name][0] for name in passes.names}
    for _ in range(rounds):
        for name in passes.names:
            times = {tile: passes.milliseconds(tiles | {name: tile}, rows, TUNED_LAYERS) for tile in options[name]}
            tiles[name] = min(times, key=lambda tile: times[tile])
    return tiles
