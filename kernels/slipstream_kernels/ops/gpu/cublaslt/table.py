"""Which algorithm a device's layers take, by shape and rows: measured ahead, as the tiles are.

A table is `tuned/<device>.json`, written by benchmarks/kernels/tune_library.py. It has a layer's rows for which a tile
is faster, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import torch

from slipstream_kernels.ops.gpu.cublaslt.product import Algorithm
from slipstream_kernels.ops.gpu.launch import INTERPRETED
from slipstream_kernels.ops.gpu.tuning import table_name

FOLDER = "tuned"


@dataclass(frozen=True, slots=True)
class LayerShape:
    """`outputs` are weight rows. `float32`: what the product leaves, which of a gated layer are its sums."""

    outputs: int
    inputs: int
    float32: bool = False
    gated: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """`rows` and whether there was a residual when the algorithm was found; None where a tile is faster."""

    rows: int
    residual: bool
    algorithm: Algorithm | None


Table = dict[LayerShape, tuple[Measured, ...]]
"""By shape, rows ascending."""


def read_algorithms(text: str) -> Table:
    """The table of a file's text."""
    found: dict[LayerShape, list[Measured]] = {}
    for entry in sorted(json.loads(text)["algorithms"], key=lambda entry: int(entry["rows"])):
        shape = LayerShape(entry["outputs"], entry["inputs"], entry["float32"], entry["gated"])
        algorithm = None if entry["algorithm"] is None else Algorithm(**entry["algorithm"])
        found.setdefault(shape, []).append(Measured(entry["rows"], entry["residual"], algorithm))
    return {shape: tuple(measured) for shape, measured in found.items()}


def entry_for(table: Table, shape: LayerShape, rows: int) -> Measured | None:
    """What was measured for the smallest number of rows that is not below `rows`; None beyond all of them."""
    return next((measured for measured in table.get(shape, ()) if measured.rows >= rows), None)


@cache
def device_table(device: torch.device) -> Table:
    """A device's table, empty where it has none."""
    if INTERPRETED or device.type != "cuda":
        return {}
    path = files("slipstream_kernels.ops.gpu.cublaslt") / FOLDER / table_name(torch.cuda.get_device_name(device))
    return read_algorithms(path.read_text(encoding="utf-8")) if path.is_file() else {}
