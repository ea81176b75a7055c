from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import torch

from slipstream_kernels.ops.gpu.cublaslt import table
from slipstream_kernels.ops.gpu.cublaslt.product import Algorithm
from slipstream_kernels.ops.gpu.cublaslt.table import LayerShape, device_table, entry_for, read_algorithms

SHAPE = LayerShape(96, 48)


def entry(rows: int, algorithm: dict[str, int] | None, **fields: Any) -> dict[str, Any]:
    shape = {"outputs": 96, "inputs": 48, "float32": False, "gated": False, "residual": True}
    return {**shape, "rows": rows, "algorithm": algorithm, "microseconds": 1.0, **fields}


def test_the_table_gives_what_was_measured_for_the_next_number_of_rows() -> None:
    named = {"id": 66, "tile": 5, "stages": 35}
    entries = [entry(128, None), entry(96, named), entry(256, named | {"custom": 2}), entry(64, named, float32=True)]
    found = read_algorithms(json.dumps({"algorithms": entries}))
    chosen = {rows: entry_for(found, SHAPE, rows) for rows in (1, 96, 97, 200, 256, 257)}
    assert {rows: one.rows for rows, one in chosen.items() if one} == {1: 96, 96: 96, 97: 128, 200: 256, 256: 256}
    algorithms = {one.rows: one.algorithm for one in chosen.values() if one}
    assert algorithms == {96: Algorithm(66, 5, 35), 128: None, 256: Algorithm(66, 5, 35, custom=2)}
    assert entry_for(found, LayerShape(96, 48, float32=True), 64) is not None
    assert entry_for(found, LayerShape(96, 48, float32=True, gated=True), 64) is None


def test_a_processor_has_no_table() -> None:
    assert device_table(torch.device("cpu")) == {}


def test_the_packages_tables_can_be_read() -> None:
    folder = files(table.__package__) / table.FOLDER
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    for name in names:
        found = read_algorithms((folder / name).read_text(encoding="utf-8"))
        assert found
        for measured in found.values():
            assert [one.rows for one in measured] == sorted({one.rows for one in measured})
