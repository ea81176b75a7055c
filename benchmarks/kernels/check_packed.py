"""Check packed weights' layers bit for bit against those of the decoded weights, and time both.

    python -m benchmarks.kernels.check_packed --output packed.json      # on a GPU; about 3 minutes
    python -m benchmarks.kernels.check_packed --small                   # a small layer, in Triton's interpreter too

Bits: every format, 1 to 2,048 rows, as the layer chooses and with other tiles, gated or with a residual; exits with
1 on a difference. Times: each linear layer of Llama-3.1-8B at each number of rows, of bfloat16 weights and of packed
ones by every way, microseconds of a call in a CUDA graph that goes round weights larger than the cache.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from benchmarks.kernels.linear_candidates import Layer, layers_8b
from benchmarks.kernels.linear_operands import microseconds
from slipstream_kernels.ops.gpu.linear import gated_linear, linear
from slipstream_kernels.ops.gpu.linear_tile import Tile
from slipstream_kernels.ops.gpu.packed.any_linear import Weight, any_gated_linear, any_linear
from slipstream_kernels.ops.gpu.packed.decode_weight import decode_weight
from slipstream_kernels.ops.gpu.packed.packed_linear import (
    packed_gated_linear,
    packed_linear,
    packed_tile,
    room_elements,
    with_stages,
)
from slipstream_kernels.ops.gpu.packed.packed_tile import MATRIX_ROWS, PART, PackedTile
from slipstream_kernels.ops.gpu.packed.packed_weight import PackedWeight, pack
from slipstream_kernels.ops.gpu.tuning import even_share
from slipstream_kernels.ops.quantised_weight import Number, QuantisedWeight, decode

CACHE_BYTES = 256 * 2**20
CHECKED_ROWS = (1, 2, 3, 7, 16, 17, 33, 64, 65, 128, 257, 512, 1024, 2048)
TIMED_ROWS = (1, 16, 32, 64, 128, 256)
FEW_ROWS = 64
"""Rows up to which decoding in registers is timed."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a weight is quantised to; `group` 0: a scale a row."""

    name: str
    number: Number
    group: int = 0
    zeros: bool = False
    short: bool = False
    """Scales are numbers of bfloat16."""


FORMS = (
    Form("fp8 row", "e4m3"),
    Form("fp8 block", "e4m3", 128),
    Form("w4 g128", "int4", 128, short=True),
    Form("w4 g128 zeros", "int4", 128, zeros=True),
    Form("w4 g128 long", "int4", 128),
    Form("w4 row zeros", "int4", zeros=True, short=True),
    Form("w8 row", "int8"),
    Form("w8 g64 zeros", "int8", 64, zeros=True),
)
TIMED_FORMS = FORMS[:4]


def random_weight(form: Form, outputs: int, inputs: int, device: torch.device, *, hostile: bool) -> QuantisedWeight:
    """Every code but NaN; `hostile`: scales of both signs from 2^-30 to 2^30, some of them 0."""
    width = inputs // 2 if form.number == "int4" else inputs
    codes = torch.randint(0, 256, (outputs, width), device=device, dtype=torch.uint8)
    if form.number == "e4m3":
        codes[(codes & 0x7F) == 0x7F] = 0x80
    group = form.group or inputs
    scales = torch.randn(outputs, -(-inputs // group), device=device) * 2.0**-8
    if hostile:
        scales *= 2.0 ** torch.randint(-30, 31, scales.shape, device=device)
        scales[torch.rand(scales.shape, device=device) < 0.1] = 0
    if form.short:
        scales = scales.bfloat16()
    most = 17 if form.number == "int4" else 257
    zeros = torch.randint(0, most, scales.shape, device=device, dtype=torch.int16) if form.zeros else None
    return QuantisedWeight(form.number, codes, scales, zeros, group)


def tiles_of(weight: PackedWeight, rows: int, *, gated: bool, full: bool) -> Iterator[PackedTile]:
    """Tiles to check, or of `full` to time."""
    first = packed_tile(weight, rows, gated=gated)
    yield first
    products = 2 if gated else 1
    if not full:
        yield PackedTile(24 // products // 8 * 8, 16, 3, 2)
        yield PackedTile(64 // products, 64, 3, 1)
        wide = PackedTile(128 // products, 64, 3, 1, 8)
        if wide.shared_memory(weight, gated) <= 216 * 1024:
            yield wide
        yield PackedTile(64 // products, 16, 3, 2, 8)
        yield PackedTile(64 // products, 8, 3, 2)
        return
    outputs = len(weight) // products
    for lines, warps in ((32, 4), (64, 4), (128, 8)):
        for room in (110, 216):
            for parts in (2, 1) if first.tokens <= 32 and warps == 4 else (1,):
                wanted = replace(first, outputs=even_share(outputs, lines // products), parts=parts, warps=warps)
                tile = with_stages(wanted, weight, gated=gated, room=room * 1024)
                if tile.shared_memory(weight, gated) <= room * 1024:
                    yield tile
                    if rows <= 8:
                        yield with_stages(replace(tile, tokens=8), weight, gated=gated, room=room * 1024)


LINEAR, GATED_LINEAR = any_linear(linear), any_gated_linear(gated_linear)


def run(weight: Weight, layer: Layer, x: Any, out: Any, more: Any, tile: PackedTile | None) -> None:
    """One call of the layer, as it chooses where `tile` is None."""
    if tile is None:
        (GATED_LINEAR if layer.gated else LINEAR)(x, weight, out, **more)
    elif isinstance(weight, PackedWeight):
        (packed_gated_linear if layer.gated else packed_linear)(x, weight, out, tile=tile, **more)
    else:  # the interpreter's sums depend on the shape of the products
        like = Tile(MATRIX_ROWS // (2 if layer.gated else 1), tile.tokens, PART, 1)
        (gated_linear if layer.gated else linear)(x, weight, out, tile=like, **more)


def check(form: Form, layer: Layer, rows: tuple[int, ...], device: torch.device) -> dict[str, Any]:
    """Compare all ways of computing a layer with the bfloat16 layer of the decoded weight."""
    weight = random_weight(form, layer.weight_rows, layer.inputs, device, hostile=True)
    plain = decode(weight)
    decoded = torch.empty_like(plain)
    room = max(plain.numel() // 2, room_elements(weight.shape))  # in two parts
    packed = replace(pack(weight).settled(), room=torch.empty(room, dtype=torch.bfloat16, device=device))
    decode_weight(packed, decoded)
    decodes = torch.equal(decoded.view(torch.int16), plain.view(torch.int16))
    compared, differing, failed = 0, [], []
    on_gpu = device.type == "cuda"
    for count in rows:
        x = torch.randn(count, layer.inputs, device=device).bfloat16()
        addends = {} if layer.gated else {"residual": torch.randn(count, layer.outputs, device=device).bfloat16()}
        dtype = torch.bfloat16 if layer.gated else torch.float32
        expected, out = (torch.empty(count, layer.outputs, dtype=dtype, device=device) for _ in range(2))
        run(plain, layer, x, expected, addends, None)
        for tile in (None, *tiles_of(packed, count, gated=layer.gated, full=False)):
            if not on_gpu:
                tile = tile or packed_tile(packed, count, gated=layer.gated)
                run(plain, layer, x, expected, addends, tile)
            out.fill_(torch.nan)
            where = f"{count} rows, {tile}"
            try:
                run(packed, layer, x, out, addends, tile)
            except Exception as error:  # noqa: BLE001  # whatever the compiler or the device finds wrong with a tile
                failed.append(f"{where}: {type(error).__name__}: {str(error)[-200:]}")
                continue
            compared += 1
            same = torch.equal(out.view(torch.uint8), expected.view(torch.uint8))
            if not same or out.isnan().any():
                differing.append(where)
    return {
        "format": form.name, "gated": layer.gated, "decodes": decodes, "compared": compared, "differing": differing,
        "failed": failed,
    }  # fmt: skip


def timed(calls: list[Callable[[], object]]) -> float:
    return round(microseconds(calls, replays=5), 2)


def time_layer(
    layer: Layer,
    rows: tuple[int, ...],
    device: torch.device,
    *,
    forms: tuple[Form, ...] = TIMED_FORMS,
    measure: Callable[[list[Callable[[], object]]], float] = timed,
) -> Iterator[dict[str, Any]]:
    """Microseconds of bfloat16, of decoding to memory and then that, and of decoding in registers by each tile."""
    outputs, inputs = layer.weight_rows, layer.inputs
    x = torch.randn(max(rows), inputs, device=device).bfloat16()
    dtype = torch.float32 if layer.logits else torch.bfloat16
    out = torch.empty(max(rows), layer.outputs, dtype=dtype, device=device)
    more = {"residual": torch.randn(max(rows), layer.outputs, device=device).bfloat16()} if layer.residual else {}
    room = torch.empty(outputs * inputs, dtype=torch.bfloat16, device=device)
    copies = max(2, min(16, CACHE_BYTES // layer.weight_bytes + 1))
    dense = [torch.randn(outputs, inputs, device=device).bfloat16() * inputs**-0.5 for _ in range(copies)]
    plain = {}

    def calls(weights: Any, count: int, tile: PackedTile | None) -> list[Callable[[], object]]:
        part = {name: value[:count] for name, value in more.items()}
        return [
            partial(run, weights[call % len(weights)], layer, x[:count], out[:count], part, tile)
            for call in range(max(len(weights), 8))
        ]

    for count in rows:
        plain[count] = measure(calls(dense, count, None))
    del dense
    for form in forms:
        packed = [
            replace(pack(random_weight(form, outputs, inputs, device, hostile=False)).settled(), room=room)
            for _ in range(max(2, min(24, CACHE_BYTES // (outputs * inputs // 2) + 1)))
        ]
        to_memory = measure([partial(decode_weight, weight, room.view(outputs, inputs)) for weight in packed])
        for count in rows:
            found: list[tuple[float, PackedTile]] = []
            failed = []
            tiles = dict.fromkeys(tiles_of(packed[0], count, gated=layer.gated, full=True))
            for tile in tiles if count <= FEW_ROWS else ():
                try:
                    found.append((measure(calls(packed, count, tile)), tile))
                except Exception as error:  # noqa: BLE001  # a tile that needs more than the device has
                    failed.append(f"{tile}: {type(error).__name__}: {str(error)[-200:]}")
            best = min(found, key=lambda pair: pair[0], default=None)
            yield {
                "layer": layer.name, "count": layer.count, "outputs": layer.outputs, "inputs": inputs,
                "gated": layer.gated, "format": form.name, "rows": count, "bytes": packed[0].nbytes,
                "bfloat16": plain[count], "decode": to_memory,
                "decode_then_bfloat16": round(to_memory + plain[count], 2),
                "packed": best and best[0], "tile": best and asdict(best[1]),
                "default": found[0][0] if found and found[0][1] == next(iter(tiles)) else None,
                "tiles": [{"microseconds": time, **asdict(tile)} for time, tile in found], "failed": failed,
            }  # fmt: skip


def passes(times: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Milliseconds of a pass's linear layers, all but the head packed, by format and rows."""
    result = []
    for form, rows in dict.fromkeys((entry["format"], entry["rows"]) for entry in times):
        here = [entry for entry in times if (entry["format"], entry["rows"]) == (form, rows)]
        plain = sum(entry["count"] * entry["bfloat16"] for entry in here)
        ways = ("packed", "decode_then_bfloat16")
        best = [
            entry["bfloat16"] if entry["layer"] == "lm_head" else min(entry[way] for way in ways if entry[way])
            for entry in here
        ]
        packed = sum(entry["count"] * time for entry, time in zip(here, best, strict=True))
        result.append({"format": form, "rows": rows, "bfloat16_ms": plain / 1e3, "packed_ms": packed / 1e3})
    return result


def prepare(job: tuple[Form, Layer, tuple[int, ...]]) -> dict[str, Any]:
    """Check a layer, or where it is one of the model's, leave its compiled kernels in the cache on disk."""
    form, layer, rows = job
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    if rows:
        return check(form, layer, rows, device)
    for _ in time_layer(layer, TIMED_ROWS, device, forms=(form,), measure=run_once):
        pass
    return {}


def run_once(calls: list[Callable[[], object]]) -> float:
    calls[0]()
    torch.cuda.synchronize()
    return 1.0


def share_out(jobs: list[tuple[Form, Layer, tuple[int, ...]]], *, alone: bool) -> Iterator[dict[str, Any]]:
    """What becomes of `jobs`, in their order: done by processes beside one another unless `alone`."""
    if alone:
        yield from map(prepare, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        yield from pool.imap(prepare, jobs, chunksize=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="a JSON file")
    parser.add_argument("--small", action="store_true", help="one small layer, whose bits alone are checked")
    parser.add_argument("--seconds", type=float, default=170, help="begin no further layer's times after so long")
    options = parser.parse_args()
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    small = options.small or device.type == "cpu"
    width = 512 if small else 4096
    rows = (1, 70) if small else CHECKED_ROWS
    shapes = [Layer("plain", 6 * width // 4, width, 1), Layer("gated", width // 2, width - 96, 1, gated=True)]
    if small:
        shapes = [Layer("plain", 40, 416, 1), Layer("gated", 24, 256, 1, gated=True)]
    checks = []
    for found in share_out([(form, layer, rows) for form in FORMS for layer in shapes], alone=small):
        checks.append(found)
        print(json.dumps(found), flush=True)
    print(f"bits: {time.monotonic() - started:.0f} s", flush=True)
    times: list[dict[str, Any]] = []
    if not small:
        layers = layers_8b()
        list(share_out([(form, layer, ()) for layer in layers for form in TIMED_FORMS], alone=False))
        print(f"compiled: {time.monotonic() - started:.0f} s", flush=True)
        for layer in layers:
            if time.monotonic() - started > options.seconds:
                print(f"no time for {layer.name}")
                continue
            for entry in time_layer(layer, TIMED_ROWS, device):
                times.append(entry)
                keys = ("layer", "format", "rows", "bfloat16", "decode", "packed", "default", "tile", "failed")
                print(json.dumps({key: entry[key] for key in keys}), flush=True)
        for row in passes(times):
            print(json.dumps(row))
    name = torch.cuda.get_device_name() if device.type == "cuda" else "interpreter"
    seconds = round(time.monotonic() - started, 1)
    if options.output:
        report = {"device": name, "seconds": seconds, "checks": checks, "times": times, "passes": passes(times)}
        options.output.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(f"{name}: {seconds} s")
    return int(any(found["differing"] or not found["decodes"] for found in checks))


if __name__ == "__main__":
    sys.exit(main())
