"""The choice between the library and a tile, made once for each layer shape and number of rows of a process.

It is a matter of time alone: the library is taken where the device's table has an algorithm, the library proposes that
algorithm here, and the algorithm leaves a tile's bits here. Anything else is a tile's, and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache

import torch

from slipstream_kernels.jit.compile_ahead import is_compiling_ahead
from slipstream_kernels.ops.gpu.cublaslt.bindings import CublasLtError
from slipstream_kernels.ops.gpu.cublaslt.bit_check import KINDS, Operands, operands, outputs_of, same_bits
from slipstream_kernels.ops.gpu.cublaslt.layers import GatedProduct, LibraryLayer, Unlaunched, problem_of
from slipstream_kernels.ops.gpu.cublaslt.product import CublasLt, Problem, Product, cublaslt, products
from slipstream_kernels.ops.gpu.cublaslt.table import LayerShape, Measured, Table, device_table, entry_for
from slipstream_kernels.ops.gpu.tuning import best_tile

_log = logging.getLogger(__name__)

CHECKED_OUTPUTS = 4096
"""Outputs of the weights that a check makes, at most: the grid grows with them, and not what a program does."""
CHECKED_ROWS = 64
"""The tile that a check compares with is the one for so many rows, which passes need anyway."""


@dataclass(slots=True)
class LibraryChoice:
    """The layers of one device that the library computes."""

    library: CublasLt | None
    table: Table
    _layers: dict[tuple[Problem, bool], LibraryLayer | None] = field(default_factory=dict)

    def layer(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        residual: torch.Tensor | None = None,
        *,
        gated: bool = False,
    ) -> LibraryLayer | None:
        """What computes these operands in a tile's place; None where a tile does.

        The first call for a problem checks it, which takes memory and waits: not while a graph is captured, when a
        problem that was not met before is a tile's.
        """
        if not self.table or self.library is None:
            return None
        problem = problem_of(x, weight, out, residual, gated=gated)
        if problem is None:
            return None
        key = problem, gated
        if key in self._layers:
            return self._layers[key]
        measured = entry_for(self.table, _shape(problem, gated), problem.rows)
        if measured is None or measured.algorithm is None:
            self._layers[key] = None
            return None
        if is_compiling_ahead():
            return layer_of(Unlaunched(), gated=gated)
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return None
        self._layers[key] = self._checked(self.library, problem, measured, weight, gated)
        return self._layers[key]

    @property
    def used(self) -> list[tuple[Problem, bool, LibraryLayer]]:
        """The problems that the library computes: (problem, gated, layer)."""
        return [(*key, layer) for key, layer in self._layers.items() if layer is not None]

    def _checked(
        self, library: CublasLt, problem: Problem, measured: Measured, weight: torch.Tensor, gated: bool
    ) -> LibraryLayer | None:
        name = f"{problem.outputs} x {problem.inputs}, {problem.rows} rows"
        try:
            with torch.cuda.device(weight.device) if weight.is_cuda else nullcontext():
                product = _proposed(library, problem, measured)
                if product is None:
                    _log.warning("linear layer %s: a tile, as cuBLASLt does not have %s", name, measured.algorithm)
                    return None
                if not leaves_tile_bits(product, weight, gated=gated):
                    _log.warning("linear layer %s: a tile, as %s leaves other bits", name, measured.algorithm)
                    return None
        except (CublasLtError, torch.cuda.OutOfMemoryError) as error:
            _log.warning("linear layer %s: a tile, as cuBLASLt fails: %s", name, error)
            return None
        _log.info("linear layer %s: cuBLASLt, %s, whose bits are a tile's", name, measured.algorithm)
        return layer_of(product, gated=gated)


def layer_of(product: Product | Unlaunched, *, gated: bool) -> LibraryLayer:
    """A product as a layer."""
    return GatedProduct(product) if gated else product


def leaves_tile_bits(product: Product, weight: torch.Tensor, *, gated: bool) -> bool:
    """Whether the algorithm leaves a tile's bits: with the layer's own weights, and with made ones of `KINDS`.

    Raises CublasLtError, OutOfMemoryError.
    """
    problem = product.problem
    tile = best_tile(
        problem.outputs // (2 if gated else 1), problem.inputs, CHECKED_ROWS, gated=gated, device=weight.device
    )
    for given in _checked_operands(problem, weight):
        part = product.of(_packed(problem, given))
        if part is None:
            return False
        out = outputs_of(given, float32=problem.float32, gated=gated)
        if not same_bits(layer_of(part, gated=gated), given, out, tile, gated=gated):
            return False
    return True


def _checked_operands(problem: Problem, weight: torch.Tensor) -> Iterator[Operands]:
    residual = problem.residual_stride is not None
    outputs = min(problem.outputs, CHECKED_OUTPUTS)
    for seed, kind in enumerate(KINDS):
        made = operands(kind, problem.rows, outputs, problem.inputs, residual=residual, seed=seed, device=weight.device)
        yield made
        if kind == KINDS[0]:
            added = None if made.residual is None else made.residual.repeat(1, -(-problem.outputs // outputs))
            yield Operands(made.x, weight, None if added is None else added[:, : problem.outputs].contiguous())


def _packed(problem: Problem, given: Operands) -> Problem:
    """The problem of these operands."""
    return Problem.packed(
        len(given.weight),
        problem.inputs,
        problem.rows,
        residual=given.residual is not None,
        float32=problem.float32,
    )


def _shape(problem: Problem, gated: bool) -> LayerShape:
    return LayerShape(problem.outputs, problem.inputs, problem.float32, gated)


def _proposed(library: CublasLt, problem: Problem, measured: Measured) -> Product | None:
    """The measured algorithm, as the library proposes it for what was measured, for `problem`."""
    asked = Problem.packed(
        problem.outputs, problem.inputs, measured.rows, residual=measured.residual, float32=problem.float32
    )
    found = (product for product in products(library, asked) if product.algorithm == measured.algorithm)
    product = next(found, None)
    return None if product is None else product.of(problem)


@cache
def library_choice(device: torch.device) -> LibraryChoice:
    """The choice of a device."""
    table = device_table(device)
    return LibraryChoice(cublaslt(device) if table else None, table)
