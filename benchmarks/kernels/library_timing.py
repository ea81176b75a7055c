"""What cuBLASLt's algorithms of equal bits do for a layer at a number of rows, beside the layer's own tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks.kernels.linear_candidates import Layer
from benchmarks.kernels.linear_operands import Operands, microseconds
from slipstream_kernels.ops.gpu.cublaslt.bindings import CublasLtError
from slipstream_kernels.ops.gpu.cublaslt.choice import layer_of, leaves_tile_bits
from slipstream_kernels.ops.gpu.cublaslt.product import Algorithm, CublasLt, Problem, Product, products
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.tuning import best_tile

CACHE_BYTES = 256 * 2**20
"""Weights that a timed graph reads at least before it reads the same again."""

WORTH = 0.98
"""The library is taken where it takes at most so much of the tile's time."""


@dataclass
class Comparison:
    """A layer at a number of rows. Times are microseconds of a call among calls that read other weights."""

    layer: Layer
    rows: int
    tile: Tile
    own: float
    proposed: int
    times: dict[Product, float] = field(default_factory=dict)
    """of the algorithms of equal bits"""
    chosen: Product | None = None

    @property
    def best(self) -> Product | None:
        """The fastest."""
        return min(self.times, key=lambda product: self.times[product], default=None)

    @property
    def library(self) -> float | None:
        return min(self.times.values(), default=None)

    @property
    def time(self) -> float:
        """Of what was chosen."""
        return self.own if self.chosen is None else self.times[self.chosen]

    def near(self, most: int) -> list[Product]:
        """At most so many algorithms that may be worth their while in a pass, fastest first."""
        ranked = sorted(self.times, key=lambda product: self.times[product])
        return [product for product in ranked if self.times[product] < 1.02 * self.own][:most]

    def choose_alone(self) -> None:
        best = self.best
        self.chosen = best if best is not None and self.times[best] <= WORTH * self.own else None

    def entry(self) -> dict[str, Any]:
        """As `cublaslt.table` reads it."""
        return {
            "outputs": self.layer.weight_rows,
            "inputs": self.layer.inputs,
            "float32": self.layer.logits or self.layer.gated,
            "gated": self.layer.gated,
            "rows": self.rows,
            "residual": self.layer.residual,
            "algorithm": None if self.chosen is None else asdict(self.chosen.algorithm),
            "microseconds": round(self.time, 2),
            "tile_microseconds": round(self.own, 2),
        }

    def facts(self) -> dict[str, Any]:
        """All that was measured."""
        return {
            "layer": self.layer.name,
            **self.entry(),
            "proposed": self.proposed,
            "equal": len(self.times),
            "algorithms": [{**asdict(p.algorithm), "microseconds": round(t, 2)} for p, t in self.times.items()],
        }


def problem_at(layer: Layer, rows: int, *, residual: bool | None = None) -> Problem:
    """The layer's product of so many rows, with a residual as the layer has it unless said otherwise."""
    wanted = layer.residual if residual is None else residual
    return Problem.packed(layer.weight_rows, layer.inputs, rows, residual=wanted, float32=layer.logits or layer.gated)


def own_tile(layer: Layer, rows: int) -> Tile:
    return best_tile(layer.outputs, layer.inputs, rows, gated=layer.gated, device=torch.device("cuda"))


def compare(library: CublasLt, operands: Operands, rows: int, most: int) -> Comparison:
    """Check and time at most `most` of the algorithms that are proposed."""
    layer = operands.layer
    tile = own_tile(layer, rows)
    found = products(library, problem_at(layer, rows))
    result = Comparison(layer, rows, tile, timed(operands, rows, tile), len(found))
    for product in found[:most]:
        if equal(product, operands.weights[0], gated=layer.gated):
            result.times[product] = timed(operands, rows, layer_of(product, gated=layer.gated))
    return result


def equal(product: Product, weight: torch.Tensor, *, gated: bool) -> bool:
    """Whether its bits are a tile's; an algorithm that fails is not."""
    try:
        return leaves_tile_bits(product, weight, gated=gated)
    except CublasLtError as error:
        print(f"fails: {product.problem}, {product.algorithm}: {error}")
        return False


def timed(operands: Operands, rows: int, cut: Any) -> float:
    """Microseconds of a call with a tile or a library's layer."""
    layer = operands.layer
    expected = max(layer.weight_bytes / 4e6, 2 * rows * layer.weight_rows * layer.inputs / 6e8)
    calls = max(CACHE_BYTES // layer.weight_bytes + 1, int(500 / expected), 2)
    return microseconds([partial(operands.run, rows, cut, copy) for copy in range(calls)])


@dataclass
class WideCheck:
    """What became of an algorithm at other numbers of rows than those it was chosen for."""

    layer: Layer
    algorithm: Algorithm
    checked: int = 0
    refused: int = 0
    """problems that the algorithm does not do"""
    differing: list[str] = field(default_factory=list)


def check_widely(product: Product, layer: Layer, weight: torch.Tensor, rows: Sequence[int]) -> WideCheck:
    """Compare an algorithm's bits with a tile's for each of `rows`, with and without a residual where one can be."""
    result = WideCheck(layer, product.algorithm)
    plain = layer.logits or layer.gated
    for count in rows:
        for residual in (False,) if plain else (False, True):
            try:
                other = product.of(problem_at(layer, count, residual=residual))
            except CublasLtError:
                other = None
            if other is None:
                result.refused += 1
                continue
            result.checked += 1
            if not equal(other, weight, gated=layer.gated):
                result.differing.append(f"{count} rows" + ", residual" * residual)
    return result
