"""Measure the tiles of the GPU's linear layers and write the device's table.

    python -m benchmarks.tune_linear [--ranks 1] [--rows 16 32 ..] [--output FILE]

Every candidate is checked against the simplest tile bit for bit, that one against float64 sums, and timed in a CUDA
graph that goes round copies of the weights larger than the cache. Beside it stands the library's product of the same
sizes (for a gated layer without its activation). At the end whole passes are timed: every layer of the model in order,
with different amounts of weights asked for ahead; the best amount goes into the table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.linear_candidates import ROW_BUCKETS, Layer, candidates, compiled_alike, layers_8b
from benchmarks.report import machine, markdown_table
from slipstream_kernels.ops.gpu.linear import gated_linear, linear
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.tuning import table_name

TABLES = Path(__file__).resolve().parents[1] / "kernels" / "slipstream_kernels" / "ops" / "gpu" / "tuning"
SIMPLEST = Tile(outputs=64, tokens=16, depth=64, stages=3)
SIMPLEST_GATED = replace(SIMPLEST, outputs=32)
PREFETCHES = (0, 512, 1024, 2048, 4096)
CACHE_BYTES = 256 * 2**20
"""Weights that a timed graph reads at least before it reads the same again."""

COMPILERS = 12


@dataclass
class Operands:
    """What one layer works on: copies of its weight, and rows enough for every bucket."""

    layer: Layer
    weights: list[torch.Tensor]
    x: torch.Tensor
    residual: torch.Tensor | None
    out: torch.Tensor

    @classmethod
    def random(cls, layer: Layer, rows: int, copies: int) -> Operands:
        make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        weights = [make(layer.weight_rows, layer.inputs).mul_(layer.inputs**-0.5) for _ in range(copies)]
        dtype = torch.float32 if layer.logits else torch.bfloat16
        out = torch.empty(rows, layer.outputs, device="cuda", dtype=dtype)
        residual = make(rows, layer.outputs) if layer.residual else None
        return cls(layer, weights, make(rows, layer.inputs), residual, out)

    def run(self, rows: int, tile: Tile, copy: int = 0) -> torch.Tensor:
        x, out, weight = self.x[:rows], self.out[:rows], self.weights[copy % len(self.weights)]
        if self.layer.gated:
            gated_linear(x, weight, out, tile=tile)
        else:
            linear(x, weight, out, residual=None if self.residual is None else self.residual[:rows], tile=tile)
        return out

    @property
    def simplest(self) -> Tile:
        return SIMPLEST_GATED if self.layer.gated else SIMPLEST

    def exact_rows(self, rows: int, columns: int) -> torch.Tensor:
        """float64 results of the first rows and columns."""
        weight = self.weights[0]
        picked = torch.cat([part[:columns] for part in weight.chunk(2 if self.layer.gated else 1)]).double()
        sums = self.x[:rows].double() @ picked.T
        if self.layer.gated:
            gate, up = sums.chunk(2, dim=1)
            return torch.nn.functional.silu(gate) * up
        return sums if self.residual is None else sums + self.residual[:rows, :columns].double()


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
            for tile in (*candidates(layer, rows), simplest) if layer.measured_at(rows) else ():
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


def microseconds(calls: Sequence[Callable[[], object]], replays: int = 7) -> float:
    """Median time of a CUDA graph of `calls`, divided by their number."""
    calls[0]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(replays + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)) * 1e3)
    return statistics.median(times[2:]) / len(calls)


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
            f"{kind} {tile.outputs}x{tile.tokens}x{tile.depth} s{tile.stages} w{tile.warps} ({tile.weight_rows(gated)})"
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


def best_of(operands: Operands, rows: int, tiles: Sequence[Tile], expected: torch.Tensor, log: list[Any]) -> Best:
    """Time `tiles` and return the fastest of those whose bits are right."""
    times: dict[Tile, float] = {}
    for tile in tiles:
        operands.out[:rows].fill_(torch.nan)
        if not torch.equal(operands.run(rows, tile), expected[:rows]):
            print(f"WRONG BITS: {operands.layer.name}, {rows} rows, {tile}")
            continue
        times[tile] = timed(operands, rows, tile)
        log.append({"layer": operands.layer.name, "rows": rows, "microseconds": times[tile], "tile": asdict(tile)})
    tile = min(times, key=lambda tile: times[tile])
    return Best(operands.layer, rows, tile, times[tile], library_time(operands, rows))


def pass_time(every: Sequence[Operands], tiles: dict[str, Tile], rows: int) -> float:
    """Milliseconds of all linear layers of a pass, in order."""
    body = [operands for operands in every if operands.layer.count > 1]
    head = [operands for operands in every if operands.layer.count == 1 and operands.layer.name in tiles]
    depth = max(operands.layer.count for operands in body)
    turns = [(operands, index) for index in range(depth) for operands in body] + [(operands, 0) for operands in head]
    calls = [partial(operands.run, rows, tiles[operands.layer.name], index) for operands, index in turns]
    return microseconds(calls, replays=5) * len(calls) / 1e3


def choose_prefetch(every: Sequence[Operands], best: dict[tuple[str, int], Best], rows: int) -> list[object]:
    """Time whole passes with each amount asked for ahead, put the best into `best`, return the row to print."""
    here = {name: found for (name, bucket), found in best.items() if bucket == rows}
    passes = {}
    asking = any(not found.tile.descriptors for found in here.values())
    for prefetch in PREFETCHES if asking else PREFETCHES[:1]:
        tiles = {name: replace(found.tile, prefetch=prefetch) for name, found in here.items()}
        passes[prefetch] = pass_time(every, tiles, rows)
    chosen = min(passes, key=lambda prefetch: passes[prefetch])
    for found in here.values():
        found.tile = replace(found.tile, prefetch=0 if found.tile.descriptors else chosen)
    library = sum(found.library * found.layer.count for found in here.values()) / 1e3
    weights = sum(found.layer.weight_bytes * found.layer.count for found in here.values())
    return [rows, chosen, passes[chosen], passes[0], library, weights / passes[chosen] / 1e9]


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1, help="tensor-parallel size whose shares are measured")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROW_BUCKETS))
    parser.add_argument("--output", type=Path, help="the table (default: the one the package reads)")
    parser.add_argument("--log", type=Path, help="write every measurement here")
    options = parser.parse_args()
    started = time.monotonic()
    layers = layers_8b(options.ranks)
    failures = compile_all(layers, options.rows)
    print(f"compiled after {time.monotonic() - started:.0f} s", flush=True)
    torch.manual_seed(0)
    best: dict[tuple[str, int], Best] = {}
    log: list[Any] = []
    every = []
    for layer in tqdm(layers, desc="layers", unit="layer"):
        buckets = [rows for rows in options.rows if layer.measured_at(rows)]
        operands = Operands.random(layer, max(buckets), layer.count)
        every.append(operands)
        expected = check(operands, max(buckets))
        for rows in buckets:
            tiles = [t for t in candidates(layer, rows) if (layer.name, compiled_alike(t, layer)) not in failures]
            best[layer.name, rows] = best_of(operands, rows, tiles, expected, log)
    passes = [choose_prefetch(every, best, rows) for rows in options.rows]
    found = sorted(best.values(), key=lambda one: one.rows)
    device = torch.cuda.get_device_name()
    write_table(options.output or TABLES / table_name(device), found, {"device": device, **machine()})
    if options.log:
        options.log.write_text(json.dumps(log, indent=0), encoding="utf-8")
    print(
        markdown_table(["rows", "layer", "tile", "us", "library", "ratio", "TB/s", "TFLOP/s"], [b.row for b in found])
    )
    print(markdown_table(["rows", "prefetch", "pass ms", "without", "library (sum) ms", "TB/s"], passes))
    print(f"{time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
