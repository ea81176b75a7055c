"""Measure the tiles of the GPU's linear layers and write the device's table.

    python -m benchmarks.kernels.tune_linear [--ranks 1] [--rows 16 32 ..] [--output FILE]
    python -m benchmarks.kernels.tune_linear --model eagle3

Every candidate is checked against the simplest tile bit for bit, that one against float64 sums, and timed in a CUDA
graph that goes round copies of the weights larger than the cache. Beside it stands the library's product of the same
sizes (for a gated layer without its activation). Of the fastest, those go into the table that make whole passes fast.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.kernels.linear_candidates import (
    ROW_BUCKETS,
    Layer,
    candidates,
    compiled_alike,
    layers_8b,
    layers_eagle3,
)
from benchmarks.kernels.linear_operands import SIMPLEST, SIMPLEST_GATED, Operands, microseconds
from benchmarks.kernels.linear_passes import Passes, descend, variants
from benchmarks.lib.report import machine, markdown_table
from benchmarks.lib.repository import ROOT
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.tuning import table_name

TABLES = ROOT / "kernels" / "slipstream_kernels" / "ops" / "gpu" / "tuned_tiles"
FEW_ROWS = 256
"""Rows up to which the weights' way to the multiprocessors counts, and with it what runs before and after a kernel."""

NEAR = 1.15
MOST_NEAR = 4
"""Tiles tried in passes: so many times the fastest's time alone at most, and so many of them."""

Ranked = dict[tuple[str, int], dict[Tile, float]]
"""Microseconds of each tile, by layer name and rows."""

CACHE_BYTES = 256 * 2**20
"""Weights that a timed graph reads at least before it reads the same again."""

COMPILERS = 15


def compile_share(work: Sequence[tuple[Layer, int, Tile]]) -> list[tuple[Layer, Tile, str]]:
    """Run each once in this process, which leaves the compiled kernel in the cache on disk. Returns failures."""
    failures = []
    for layer, rows, tile in work:
        try:
            Operands.random(layer, rows, 1).run(rows, tile)
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001  # whatever the compiler or the device finds wrong with a candidate
            failures.append((layer, tile, f"{type(error).__name__}: {error}"[:200]))
    return failures


def compile_all(layers: Sequence[Layer], buckets: Sequence[int]) -> set[tuple[str, Tile]]:
    """Compile every candidate in parallel; returns those (layer's name, tile as compiled) that do not work."""
    wanted: dict[tuple[Any, ...], tuple[Layer, int, Tile]] = {}
    for layer in layers:
        simplest = SIMPLEST_GATED if layer.gated else SIMPLEST
        for rows in buckets:
            tiles = candidates(layer, rows) if layer.measured_at(rows) else []
            tried_in_passes = layer.count > 1 and rows <= FEW_ROWS
            for tile in (*(variants(tiles) if tried_in_passes else tiles), simplest):
                key = (compiled_alike(tile, layer), layer.gated, layer.residual, layer.logits)
                wanted.setdefault(key, (layer, rows, tile))
    work = list(wanted.values())
    shares = [work[start::COMPILERS] for start in range(COMPILERS)]
    failures: set[tuple[str, Tile]] = set()
    with multiprocessing.get_context("spawn").Pool(COMPILERS) as pool:
        for failed in pool.imap_unordered(compile_share, shares):
            for layer, tile, message in failed:
                print(f"fails: {layer.name} {tile}: {message}")
                failures.update((other.name, compiled_alike(tile, layer)) for other in layers if like(other, layer))
    print(f"{len(work)} kernels compiled")
    return failures


def like(one: Layer, other: Layer) -> bool:
    return (one.gated, one.residual, one.logits) == (other.gated, other.residual, other.logits)


def rotations(operands: Operands, rows: int) -> int:
    """Calls of a timed graph: weights of `CACHE_BYTES`, and about half a millisecond, at least."""
    layer = operands.layer
    expected = max(layer.weight_bytes / 4e6, 2 * rows * layer.weight_rows * layer.inputs / 6e8)
    return max(CACHE_BYTES // layer.weight_bytes + 1, int(500 / expected), 2)


def timed(operands: Operands, rows: int, tile: Tile) -> float:
    return microseconds([partial(operands.run, rows, tile, copy) for copy in range(rotations(operands, rows))])


def library_time(operands: Operands, rows: int) -> float:
    x, weights = operands.x[:rows], operands.weights
    out = torch.empty(rows, operands.layer.weight_rows, device="cuda", dtype=torch.bfloat16)
    count = rotations(operands, rows)
    return microseconds([partial(torch.mm, x, weights[i % len(weights)].T, out=out) for i in range(count)])


@dataclass
class Best:
    layer: Layer
    rows: int
    tile: Tile
    time: float
    library: float

    @property
    def row(self) -> list[object]:
        tile, gated = self.tile, self.layer.gated
        kind = ("blocks" + "*" * tile.persistent) if tile.descriptors else "stream"
        cut = (
            f"{kind} {tile.outputs}x{tile.tokens}x{tile.depth} s{tile.stages} w{tile.warps} "
            f"({tile.weight_rows(gated)}) +{tile.prefetch}" + " tokens first" * tile.tokens_first
        )
        operations = 2 * self.rows * self.layer.weight_rows * self.layer.inputs
        return [
            self.rows, self.layer.name, cut, self.time, self.library, self.library / self.time,
            self.layer.weight_bytes / self.time / 1e6, operations / self.time / 1e6,
        ]  # fmt: skip


def check(operands: Operands, rows: int) -> torch.Tensor:
    """The simplest tile's results for `rows` rows, after a comparison with float64."""
    operands.out.fill_(torch.nan)
    expected = operands.run(rows, operands.simplest).clone()
    exact = operands.exact_rows(min(rows, 64), 4096)
    some = expected[: exact.shape[0], : exact.shape[1]].double()
    error = float((some - exact).norm() / exact.norm())
    assert error < (1e-4 if operands.layer.logits else 4e-3), f"{operands.layer.name}: error {error:.2e}"
    print(f"{operands.layer.name}: relative error against float64 {error:.2e}")
    return expected


def time_all(operands: Operands, rows: int, tiles: Sequence[Tile], expected: torch.Tensor) -> dict[Tile, float]:
    """Microseconds of those of `tiles` whose bits are right."""
    times: dict[Tile, float] = {}
    for tile in tiles:
        operands.out[:rows].fill_(torch.nan)
        if not torch.equal(operands.run(rows, tile), expected[:rows]):
            print(f"WRONG BITS: {operands.layer.name}, {rows} rows, {tile}")
            continue
        times[tile] = timed(operands, rows, tile)
    return times


def choose_by_passes(passes: Passes, ranked: Ranked, best: dict[tuple[str, int], Best], rows: int) -> None:
    """Put the tiles of the fastest pass of `rows` rows into `best`."""
    near = {
        name: [tile for tile in sorted(times, key=lambda tile: times[tile]) if times[tile] < NEAR * min(times.values())]
        for (name, bucket), times in ranked.items()
        if bucket == rows
    }
    options = {name: variants(tiles[:MOST_NEAR]) for name, tiles in near.items()}
    for name, tile in descend(passes, options, rows).items():
        best[name, rows].tile = tile


def pass_row(passes: Passes, best: dict[tuple[str, int], Best], rows: int) -> list[object]:
    here = {name: found for (name, bucket), found in best.items() if bucket == rows}
    tiles = {name: found.tile for name, found in here.items()}
    idle = {name: replace(tile, prefetch=0) for name, tile in tiles.items()}
    alone = passes.milliseconds(tiles, rows, passes.layers, alone=True)
    without = passes.milliseconds(idle, rows, passes.layers, alone=True)
    whole = passes.milliseconds(tiles, rows, passes.layers)
    library = sum(found.library * found.layer.count for found in here.values()) / 1e3
    weights = sum(found.layer.weight_bytes * found.layer.count for found in here.values())
    return [rows, alone, without, whole, library, weights / alone / 1e9]


def entry(best: Best) -> dict[str, Any]:
    standard = {field.name: field.default for field in fields(Tile)}
    return {
        "outputs": best.layer.outputs,
        "inputs": best.layer.inputs,
        "gated": best.layer.gated,
        "rows": best.rows,
        "tile": {name: value for name, value in asdict(best.tile).items() if value != standard[name]},
        "microseconds": round(best.time, 2),
    }


def write_table(path: Path, found: Sequence[Best], facts: Mapping[str, Any]) -> None:
    """Write the table, one tile a line; what the file has already for other shapes or rows stays."""
    entries = [entry(best) for best in found]
    measured = {(e["outputs"], e["inputs"], e["gated"], e["rows"]) for e in entries}
    if path.is_file():
        old = json.loads(path.read_text(encoding="utf-8"))["tiles"]
        entries += [e for e in old if (e["outputs"], e["inputs"], e["gated"], e["rows"]) not in measured]
    entries.sort(key=lambda e: (e["gated"], e["outputs"], e["inputs"], e["rows"]))
    lines = ",\n".join(json.dumps(e) for e in entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"measured": {json.dumps(dict(facts))},\n"tiles": [\n{lines}\n]}}\n', encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.tune_linear",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=("target", "eagle3"), default="target", help="whose layers (target)")
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel size whose shares are measured")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROW_BUCKETS))
    parser.add_argument("--output", type=Path, help="the table (default: the one the package reads)")
    parser.add_argument("--log", type=Path, help="write every measurement here")
    options = parser.parse_args()
    started = time.monotonic()
    layers = layers_8b(options.ranks) if options.model == "target" else layers_eagle3()
    failures = compile_all(layers, options.rows)
    print(f"compiled after {time.monotonic() - started:.0f} s", flush=True)
    torch.manual_seed(0)
    best: dict[tuple[str, int], Best] = {}
    ranked: Ranked = {}
    every = []
    for layer in tqdm(layers, desc="layers", unit="layer"):
        buckets = [rows for rows in options.rows if layer.measured_at(rows)]
        copies = max(layer.count, CACHE_BYTES // layer.weight_bytes + 1)
        operands = Operands.random(layer, max(buckets), copies)
        every.append(operands)
        expected = check(operands, max(buckets))
        for rows in buckets:
            tiles = [t for t in candidates(layer, rows) if (layer.name, compiled_alike(t, layer)) not in failures]
            times = ranked[layer.name, rows] = time_all(operands, rows, tiles, expected)
            tile = min(times, key=lambda tile: times[tile])
            best[layer.name, rows] = Best(layer, rows, tile, times[tile], library_time(operands, rows))
    print(f"each alone after {time.monotonic() - started:.0f} s", flush=True)
    passes = Passes(every) if options.model == "target" else None
    if passes is not None:
        for rows in tqdm([rows for rows in options.rows if rows <= FEW_ROWS], desc="passes", unit="rows"):
            choose_by_passes(passes, ranked, best, rows)
    for one in best.values():
        if one.tile not in ranked[one.layer.name, one.rows]:
            operands = next(operands for operands in every if operands.layer is one.layer)
            ranked[one.layer.name, one.rows][one.tile] = timed(operands, one.rows, one.tile)
        one.time = ranked[one.layer.name, one.rows][one.tile]
    found = sorted(best.values(), key=lambda one: one.rows)
    device = torch.cuda.get_device_name()
    write_table(options.output or TABLES / table_name(device), found, {"device": device, **machine()})
    if options.log:
        log = [
            {"layer": name, "rows": rows, "microseconds": time, "tile": asdict(tile)}
            for (name, rows), times in ranked.items()
            for tile, time in times.items()
        ]
        options.log.write_text(json.dumps(log, indent=0), encoding="utf-8")
    print(
        markdown_table(["rows", "layer", "tile", "us", "library", "ratio", "TB/s", "TFLOP/s"], [b.row for b in found])
    )
    heads = ["rows", "linear layers ms", "without prefetch", "with the rest", "library (sum) ms", "TB/s"]
    if passes is not None:
        print(markdown_table(heads, [pass_row(passes, best, rows) for rows in options.rows]))
    print(f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
