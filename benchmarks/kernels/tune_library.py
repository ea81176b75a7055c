"""Compare cuBLASLt with the GPU's own linear layers, bits and times, and write the device's table of algorithms.

    python -m benchmarks.kernels.tune_library [--output FILE] [--table FILE] [--model FOLDER] [--rows 96 128 ..]

For each layer of Llama-3.1-8B and of its EAGLE-3 head, or of a model's folder, and each number of rows: algorithms that
do not split the sum are compared bit for bit with a tile, on normal, cancelling and swamped operands and on weights as
large as the layer's, and those that are equal are timed beside the tile. The 8B model's are chosen by the time of
passes, the others alone. What is chosen is then compared at rows from 1 to 2,048, with and without a residual. Exit
status 1 where an algorithm leaves other bits there; its entries are a tile's then.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmarks.kernels.library_timing import (
    CACHE_BYTES,
    Comparison,
    WideCheck,
    check_widely,
    compare,
    own_tile,
)
from benchmarks.kernels.linear_candidates import Layer, layers_8b, layers_eagle3
from benchmarks.kernels.linear_operands import Operands
from benchmarks.kernels.linear_passes import Cut, Passes, descend
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import ROOT
from slipstream_kernels.jit.compile_ahead import compiling_ahead
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.ops.gpu.cublaslt.choice import CHECKED_ROWS, layer_of
from slipstream_kernels.ops.gpu.cublaslt.product import Product, cublaslt
from slipstream_kernels.ops.gpu.silu_mul import silu_mul
from slipstream_kernels.ops.gpu.tiled_linear import tiled_linear
from slipstream_kernels.ops.gpu.tuning import table_name

TABLES = ROOT / "kernels" / "slipstream_kernels" / "ops" / "gpu" / "cublaslt" / "tuned"
ROWS = (96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
WIDE_ROWS = (1, 2, 7, 16, 33, 64, 96, 127, 128, 200, 256, 320, 384, 511, 512, 528, 1000, 1024, 1537, 2048)
MOST_GATED = 512
"""Rows up to which a gated layer is measured: beyond, its sums take memory that the plan does not know of."""
MOST_ALGORITHMS = 12
MOST_IN_PASSES = 2
"""Algorithms of a layer that passes are tried with."""


def layers_of(folder: Path) -> list[Layer]:
    """The linear layers of a model's folder."""
    config = ModelConfig.from_folder(folder)
    qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    hidden, wide = config.hidden_size, config.intermediate_size
    return [
        Layer("qkv", qkv, hidden, 1),
        Layer("o", hidden, config.num_heads * config.head_dim, 1, residual=True),
        Layer("gate_up", wide, hidden, 1, gated=True),
        Layer("down", hidden, wide, 1, residual=True),
        Layer("lm_head", config.vocab_size, hidden, 1, logits=True),
    ]


def measured_at(layer: Layer, rows: int) -> bool:
    return layer.measured_at(rows) and not (layer.gated and rows > MOST_GATED)


def compile_kernels(every: Sequence[Operands], rows: Sequence[int]) -> None:
    """Compile what is compared, side by side."""
    with compiling_ahead():
        for operands in every:
            layer = operands.layer
            for count in {*rows, CHECKED_ROWS}:
                if count == CHECKED_ROWS or measured_at(layer, count):
                    operands.run(count, own_tile(layer, count))
            if layer.gated:
                sums = torch.empty(1, layer.weight_rows, dtype=torch.float32, device="cuda")
                silu_mul(sums, operands.out[:1])
            elif not layer.logits:
                x, out, tile = operands.x[:CHECKED_ROWS], operands.out[:CHECKED_ROWS], own_tile(layer, CHECKED_ROWS)
                for residual in (None, out):
                    tiled_linear(x, operands.weights[0], out, None, residual, tile)


def choose_by_passes(passes: Passes, found: dict[tuple[str, int], Comparison], rows: int) -> None:
    """Choose for the layers of a pass of `rows` rows what makes it fastest."""
    options: dict[str, list[Cut]] = {}
    named: dict[Cut, Product] = {}
    for name in passes.names:
        one = found.get((name, rows))
        if one is None:
            options[name] = [own_tile(passes.layer(name), rows)]
            continue
        cuts: dict[Cut, Product] = {
            layer_of(product, gated=one.layer.gated): product for product in one.near(MOST_IN_PASSES)
        }
        named |= cuts
        options[name] = [one.tile, *cuts]
    for name, cut in descend(passes, options, rows).items():
        if (name, rows) in found:
            found[name, rows].chosen = named.get(cut)


def pass_times(passes: Passes, found: dict[tuple[str, int], Comparison], rows: int) -> dict[str, float]:
    """Milliseconds of the linear layers of a pass, and with what stands between them: by tiles, and as chosen."""
    own: dict[str, Cut] = {name: own_tile(passes.layer(name), rows) for name in passes.names}
    chosen = dict(own)
    for (name, count), one in found.items():
        if count == rows and (name in own or one.layer.logits):
            own[name] = one.tile
            chosen[name] = one.tile if one.chosen is None else layer_of(one.chosen, gated=one.layer.gated)
    times = {}
    for label, cuts in (("tiles", own), ("chosen", chosen)):
        times[label] = passes.milliseconds(cuts, rows, passes.layers, alone=True)
        times[f"{label}, with the rest"] = passes.milliseconds(cuts, rows, passes.layers)
    return times


def check_chosen(
    found: dict[tuple[str, int], Comparison], every: Sequence[Operands], rows: Sequence[int]
) -> list[WideCheck]:
    """Check each algorithm that was chosen at many numbers of rows; one that differs is chosen no more."""
    checks = []
    for operands in tqdm(every, desc="rows 1 to 2048", unit="layer"):
        own = [one for (name, _), one in found.items() if name == operands.layer.name]
        chosen = {one.chosen.algorithm: one.chosen for one in own if one.chosen is not None}
        for product in chosen.values():
            limit = 512 if operands.layer.logits or operands.layer.gated else max(rows)
            within = [count for count in rows if count <= limit]
            check = check_widely(product, operands.layer, operands.weights[0], within)
            checks.append(check)
            for one in own if check.differing else ():
                if one.chosen is not None and one.chosen.algorithm == check.algorithm:
                    one.chosen = None
    return checks


def write_table(path: Path, found: Sequence[Comparison], facts: dict[str, Any]) -> None:
    """Write the table, one entry a line; what the file has already for other shapes stays."""
    entries = [one.entry() for one in found]
    shapes = {(e["outputs"], e["inputs"], e["float32"], e["gated"]) for e in entries}
    if path.is_file():
        old = json.loads(path.read_text(encoding="utf-8"))["algorithms"]
        entries += [e for e in old if (e["outputs"], e["inputs"], e["float32"], e["gated"]) not in shapes]
    entries.sort(key=lambda e: (e["gated"], e["float32"], e["outputs"], e["inputs"], e["rows"]))
    lines = ",\n".join(json.dumps(e) for e in entries)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"measured": {json.dumps(facts)},\n"algorithms": [\n{lines}\n]}}\n', encoding="utf-8")


def summary(found: dict[tuple[str, int], Comparison], rows: Sequence[int]) -> str:
    """Microseconds by rows and layer: tile / library, with a star where the library is chosen."""
    names = list(dict.fromkeys(name for name, _ in found))

    def cell(name: str, count: int) -> str:
        one = found.get((name, count))
        if one is None:
            return "-"
        library = "-" if one.library is None else f"{one.library:.1f}"
        return f"{one.own:.1f} / {library}" + " *" * (one.chosen is not None)

    return markdown_table(["rows", *names], [[count, *(cell(name, count) for name in names)] for count in rows])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.tune_library",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="a model's folder (Llama-3.1-8B's shapes and its EAGLE-3 head's)")
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--output", type=Path, help="write every measurement here as JSON")
    parser.add_argument("--table", type=Path, help="the table (default: the one the package reads)")
    options = parser.parse_args()
    started = time.monotonic()
    library = cublaslt(torch.device("cuda", torch.cuda.current_device()))
    if library is None:
        print("torch has not loaded cuBLASLt here", file=sys.stderr)
        return 2
    torch.manual_seed(0)
    of_target = layers_of(options.model) if options.model else layers_8b()
    of_head = [] if options.model else [replace(layer, name=f"head {layer.name}") for layer in layers_eagle3()]
    every = []
    for layer in (*of_target, *of_head):
        largest = max(rows for rows in (*options.rows, CHECKED_ROWS) if layer.measured_at(rows))
        every.append(Operands.random(layer, largest, max(layer.count, CACHE_BYTES // layer.weight_bytes + 1)))
    compile_kernels(every, options.rows)
    print(f"cuBLASLt {library.version}; compiled after {time.monotonic() - started:.0f} s", flush=True)

    found: dict[tuple[str, int], Comparison] = {}
    for operands in tqdm(every, desc="layers", unit="layer"):
        for rows in options.rows:
            if measured_at(operands.layer, rows):
                one = compare(library, operands, rows, MOST_ALGORITHMS)
                one.choose_alone()
                found[operands.layer.name, rows] = one
    print(f"each alone after {time.monotonic() - started:.0f} s", flush=True)
    passes = None if options.model else Passes(every[: len(of_target)])
    if passes is not None:
        for rows in tqdm(options.rows, desc="passes", unit="rows"):
            choose_by_passes(passes, found, rows)
    checks = check_chosen(found, every, WIDE_ROWS)
    print(f"chosen and checked after {time.monotonic() - started:.0f} s", flush=True)
    times = {} if passes is None else {rows: pass_times(passes, found, rows) for rows in options.rows}

    facts = gpu_machine("cuda") | {"cublaslt": library.version}
    device = torch.cuda.get_device_name()
    write_table(options.table or TABLES / table_name(device), list(found.values()), facts)
    differing = [f"{check.layer.name}, {check.algorithm}: {text}" for check in checks for text in check.differing]
    if options.output:
        content = {
            "machine": facts,
            "layers": [one.facts() for one in found.values()],
            "passes": [{"rows": rows, **row} for rows, row in times.items()],
            "checks": {
                "algorithms": len(checks),
                "problems": sum(check.checked for check in checks),
                "refused": sum(check.refused for check in checks),
                "differing": differing,
            },
            "seconds": time.monotonic() - started,
        }
        write_json(options.output, content)
    print(f"\nmicroseconds, tile / library of equal bits, * chosen\n\n{summary(found, options.rows)}\n")
    if times:
        heads = list(next(iter(times.values())))
        print("milliseconds of a pass's linear layers\n")
        print(markdown_table(["rows", *heads], [[rows, *row.values()] for rows, row in times.items()]))
    proposed, same = sum(one.proposed for one in found.values()), sum(len(one.times) for one in found.values())
    print(f"\n{proposed} algorithms proposed, of at most {MOST_ALGORITHMS} tried a case {same} have a tile's bits")
    print(f"{len(checks)} algorithms chosen, {sum(check.checked for check in checks)} problems of other rows checked, ")
    print(f"{sum(check.refused for check in checks)} refused, differing: {'; '.join(differing) or 'none'}")
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
