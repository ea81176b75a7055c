"""Which tile a linear layer is cut by: measured ahead for known devices and shapes, else by a rule.

A table is `tuned_tiles/<device>.json`, written by benchmarks/kernels/tune_linear.py. Nothing is measured while
requests run, and no choice changes a result's bits.
"""

from __future__ import annotations

import json
from dataclasses import fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

import torch
from triton import cdiv, next_power_of_2

from slipstream_kernels.ops.gpu.launch import INTERPRETED
from slipstream_kernels.ops.gpu.linear_tile import Tile

Shape = tuple[int, int, bool]
"""(outputs, inputs, gated)."""

MULTIPROCESSORS = 132


def table_name(device_name: str) -> str:
    """The file of a device's table, from the name it gives itself."""
    return device_name.strip().lower().replace(" ", "_") + ".json"


def read_table(text: str) -> dict[Shape, dict[int, Tile]]:
    """Tiles by shape and by the largest number of rows they are meant for, ascending."""
    names = {field.name for field in fields(Tile)}
    table: dict[Shape, dict[int, Tile]] = {}
    for entry in sorted(json.loads(text)["tiles"], key=lambda entry: int(entry["rows"])):
        shape = (entry["outputs"], entry["inputs"], entry["gated"])
        known: dict[str, Any] = {name: value for name, value in entry["tile"].items() if name in names}
        table.setdefault(shape, {})[entry["rows"]] = Tile(**known)
    return table


@cache
def _table(device: torch.device) -> dict[Shape, dict[int, Tile]]:
    if INTERPRETED:
        return {}
    path = files("slipstream_kernels.ops.gpu") / "tuned_tiles" / table_name(torch.cuda.get_device_name(device))
    return read_table(path.read_text(encoding="utf-8")) if path.is_file() else {}


@cache
def best_tile(outputs: int, inputs: int, rows: int, *, gated: bool, device: torch.device) -> Tile:
    """The measured tile of the smallest number of rows that is not below `rows`, or else `default_tile`."""
    measured = _table(device).get((outputs, inputs, gated), {})
    if not measured:
        return default_tile(outputs, rows, gated)
    return measured[min((limit for limit in measured if limit >= rows), default=max(measured))]


def default_tile(outputs: int, rows: int, gated: bool) -> Tile:
    """A tile for any shape: few rows read the weights in even shares, many rows multiply large blocks."""
    products = 2 if gated else 1
    if rows > 256:
        return Tile(128 // products, 256, 64, stages=4, warps=8, descriptors=True, persistent=True)
    tokens = max(next_power_of_2(rows), 16)
    weight_rows = 64 if rows <= 32 else 128
    share = even_share(outputs, weight_rows // products)
    return filled(Tile(share, tokens, 64 if rows > 64 else 128, 1), gated, 200 * 1024)


def even_share(outputs: int, largest: int) -> int:
    """Outputs of a program, at most `largest`, a multiple of 8: equal programs for each multiprocessor where it can."""
    rounds = cdiv(outputs, largest * MULTIPROCESSORS)
    return min(int(cdiv(cdiv(outputs, rounds * MULTIPROCESSORS), 8)) * 8, largest)


def filled(tile: Tile, gated: bool, room: int) -> Tile:
    """`tile` with as many stages as fit `room` bytes of shared memory, at most 12, and enough warps for its sums."""
    sums = tile.weight_rows(gated) * tile.tokens
    wide = sums >= 128 * 128
    return replace(tile, stages=min(room // tile.shared_memory(gated), 12), warps=8 if wide else 4)
