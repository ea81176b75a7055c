"""Check layers of e4m3 with activations in e4m3 bit for bit, and time them beside those of bfloat16 and FP8 weights.

    python -m benchmarks.kernels.check_fp8_linear --output fp8_linear.json   # on a Hopper GPU; 90 s at most
    python -m benchmarks.kernels.check_fp8_linear --small                    # small layers, in the interpreter too

Bits: linear layers of Llama-3.1-8B of 1 to 2,048 rows, the first ones and any, against the same rows of 2,048; every
tile that is timed; the scheme of `check_fp8_products`; and codes that norms write (`coded_norms`). In the interpreter,
whose products depend on their shapes, layers are compared up to rounding. Times: microseconds of a call, quantising
included, in a CUDA graph that goes round weights larger than the cache, by each tile; and of norms that quantise. Exits
with 1 on a difference.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from benchmarks.kernels.check_fp8_products.products import Fp8Operands, Scheme, SchemeTile
from benchmarks.kernels.check_fp8_products.products import fp8_products as products_of_scheme
from benchmarks.kernels.check_packed import FORMS, random_weight, run, timed
from benchmarks.kernels.coded_norms import HIDDEN, SMALL_HIDDEN, check_norms, time_norms
from benchmarks.kernels.linear_candidates import Layer, layers_8b
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from slipstream_kernels.jit.compile_ahead import compiling_ahead
from slipstream_kernels.ops.gpu.fp8_linear.fp8_ops import CodeRoom
from slipstream_kernels.ops.gpu.fp8_linear.fp8_products import fp8_products, fp8_products_reference
from slipstream_kernels.ops.gpu.fp8_linear.fp8_tile import CHUNK, Fp8Tile, fp8_tile
from slipstream_kernels.ops.gpu.fp8_linear.fp8_weight import Fp8Weight
from slipstream_kernels.ops.gpu.fp8_linear.quantise_rows import quantise_rows
from slipstream_kernels.ops.gpu.packed.packed_weight import pack

CHECKED_ROWS = (1, 2, 3, 8, 16, 17, 64, 65, 128, 256, 512, 1000, 2048)
TIMED_ROWS = (1, 16, 32, 64, 128, 256, 512, 1000, 2048)
SMALL_ROWS = (1, 3, 40)
SMALL = (Layer("o", 80, 192, 1, residual=True), Layer("gate_up", 48, 64, 1, gated=True))
SCHEME, SCHEME_TILE = Scheme(False, CHUNK), SchemeTile(64, 64, 4, tokens_first=False)
_ALONE, _SHARED = 200 * 1024, 100 * 1024
_L2_BYTES = 60 << 20
_ERROR_ROWS = 256
BFLOAT16, WEIGHT_ONLY, DEFAULT = "bfloat16", "FP8 weights", "FP8 activations"
MANY = (
    Fp8Tile(128, 64, 4, tokens_first=False),
    Fp8Tile(128, 64, 4, tokens_first=False, stages=3),
    Fp8Tile(128, 128, 8, tokens_first=False),
    Fp8Tile(128, 128, 8, tokens_first=True),
    Fp8Tile(256, 128, 8, tokens_first=False),
    Fp8Tile(128, 256, 8, tokens_first=True),
)

Call = Callable[[], object]


def name_of(tile: Fp8Tile) -> str:
    order = "tokens first" if tile.tokens_first else "outputs first"
    step = f"{tile.stages} stages of {tile.chunks * CHUNK}"
    return f"{tile.tokens} x {tile.outputs}, {tile.warps} warps, {order}, {step}"


def candidates(rows: int, weight_rows: int) -> list[Fp8Tile]:
    """Tiles worth a look, the layer's own first."""
    own = fp8_tile(rows, weight_rows)
    if rows > 256:
        return list(dict.fromkeys((own, *MANY)))
    if rows > 64:
        halves = (Fp8Tile(64, outputs, 4, tokens_first=False) for outputs in (64, 128))
        return list(dict.fromkeys((own, *halves, *MANY[:4])))
    base = Fp8Tile(own.tokens, 64, 4, tokens_first=False, prefetch=own.prefetch)
    cut = [
        replace(base, outputs=outputs, chunks=chunks).filled(room)
        for outputs, chunks, room in (
            (64, 1, _ALONE), (64, 2, _ALONE), (64, 1, _SHARED), (64, 2, _SHARED), (128, 1, _ALONE), (128, 1, _SHARED),
        )
    ]  # fmt: skip
    first = replace(base, tokens=64, outputs=32, tokens_first=True)
    return list(dict.fromkeys((own, *cut, first.filled(_SHARED), replace(base, prefetch=0).filled(_ALONE))))


@dataclass(frozen=True, slots=True)
class Case:
    """A layer, rows of all sizes, and copies of its weight in every form, larger than the L2 cache together."""

    layer: Layer
    x: torch.Tensor
    residual: torch.Tensor | None
    weights: Sequence[Fp8Weight]
    dense: Sequence[torch.Tensor]
    packed: Sequence[Any]
    room: CodeRoom

    @classmethod
    def random(cls, layer: Layer, rows: int, device: torch.device) -> Case:
        outputs, inputs = layer.weight_rows, layer.inputs
        copies = max(2, 1 + 2 * _L2_BYTES // (outputs * inputs)) if device.type == "cuda" else 1
        room = torch.empty(outputs * inputs, dtype=torch.bfloat16, device=device)
        forms = [random_weight(FORMS[0], outputs, inputs, device, hostile=False) for _ in range(copies)]
        x = torch.randn(rows, inputs, device=device) * torch.exp2(4 * torch.randn(rows, 1, device=device))
        return cls(
            layer,
            x.bfloat16(),
            torch.randn(rows, layer.outputs, device=device).bfloat16() if layer.residual else None,
            [Fp8Weight(form.codes, form.scales[:, 0].contiguous()) for form in forms],
            [torch.randn(outputs, inputs, device=device).bfloat16() for _ in range(max(2, copies // 2))],
            [replace(pack(form).settled(), room=room) for form in forms],
            CodeRoom.empty(rows, inputs, device),
        )

    def call(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        out: torch.Tensor,
        weight: Fp8Weight,
        tile: Fp8Tile | None = None,
    ) -> None:
        """The layer as `Fp8Linear` has it, cut by `tile`."""
        codes, scales = self.room.of(*x.shape)
        quantise_rows(x, codes, scales)
        fp8_products(codes, scales, weight, out, residual=residual, gated=self.layer.gated, tile=tile)

    def sums(self, index: torch.Tensor, tile: Fp8Tile | None = None) -> torch.Tensor:
        """float32 results of the rows that `index` names, in its order."""
        out = torch.full((len(index), self.layer.outputs), torch.nan, device=self.x.device)
        residual = None if self.residual is None else self.residual[index]
        self.call(self.x[index], residual, out, self.weights[0], tile)
        return out

    def ways(self, rows: int) -> Iterator[tuple[str, list[Call]]]:
        """Names of what is timed, each with calls over all copies."""
        x, out = self.x[:rows], torch.empty(rows, self.layer.outputs, dtype=torch.bfloat16, device=self.x.device)
        residual = None if self.residual is None else self.residual[:rows]
        more = {} if residual is None else {"residual": residual}
        for name, weights in ((BFLOAT16, self.dense), (WEIGHT_ONLY, self.packed)):
            yield name, [partial(run, weight, self.layer, x, out, more, None) for weight in weights]
        for number, tile in enumerate(candidates(rows, self.layer.weight_rows)):
            name = name_of(tile) + ("" if tile.prefetch or rows > 64 else ", nothing early")
            calls: list[Call] = [partial(self.call, x, residual, out, weight, tile) for weight in self.weights]
            yield name if number else DEFAULT, calls
        codes, scales = self.room.of(rows, self.layer.inputs)
        yield "quantise", [partial(quantise_rows, x, codes, scales) for _ in range(4)]


def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal bits, none of them of no number; on a CPU, equal up to rounding."""
    if got.is_cuda:
        return torch.equal(got.view(torch.int32), expected.view(torch.int32)) and bool(got.isfinite().all())
    return torch.allclose(got, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def check(case: Case, counts: Sequence[int]) -> dict[str, Any]:
    """What differs from the rows of the whole, by rows and tile, and how far that is from float64's."""
    device, layer = case.x.device, case.layer
    everything = torch.arange(len(case.x), device=device)
    whole = case.sums(everything)
    compared, differing, failed = 0, [], []
    for count in counts:
        order = torch.randperm(len(case.x), device=device)[:count]
        tiles = candidates(count, layer.weight_rows) if device.type == "cuda" else ()
        for place, index in (("first", everything[:count]), ("any", order)):
            for tile in (None, *tiles):
                where = f"{place} {count} rows, {'as the layer chooses' if tile is None else name_of(tile)}"
                try:
                    got = case.sums(index, tile)
                except Exception as error:  # noqa: BLE001  # whatever the compiler or the device finds wrong with a tile
                    failed.append(f"{where}: {type(error).__name__}: {str(error)[-200:]}")
                    continue
                compared += 1
                if not same(got, whole[index]):
                    differing.append(where)
    if not same(_by_scheme(case), whole):
        differing.append(f"the scheme {SCHEME.name} of check_fp8_products")
    exact = _exact(case)
    off = float((whole[: len(exact)].double() - exact).norm() / exact.norm())
    return {"layer": layer.name, "compared": compared, "differing": differing, "failed": failed, "error": off}


def _by_scheme(case: Case) -> torch.Tensor:
    """The whole by the experiment's kernel."""
    codes, scales = case.room.of(*case.x.shape)
    quantise_rows(case.x, codes, scales)
    e4m3, weight = torch.float8_e4m3fn, case.weights[0]
    given = Fp8Operands(codes.view(e4m3), weight.codes.view(e4m3), scales[None], weight.scales[:, None])
    out = torch.empty(len(case.x), case.layer.outputs, device=case.x.device)
    products_of_scheme(given, out, SCHEME, SCHEME_TILE, gated=case.layer.gated, residual=case.residual)
    return out


def _exact(case: Case) -> torch.Tensor:
    """float64's results of the first rows, from the same codes."""
    x = case.x[:_ERROR_ROWS]
    codes, scales = case.room.of(*x.shape)
    quantise_rows(x, codes, scales)
    out = torch.empty(len(x), case.layer.outputs, dtype=torch.float64, device=x.device)
    residual = None if case.residual is None else case.residual[:_ERROR_ROWS]
    fp8_products_reference(codes, scales, case.weights[0], out, residual=residual, gated=case.layer.gated)
    return out


def time_layer(case: Case, rows: int, measure: Callable[[list[Call]], float] = timed) -> dict[str, Any]:
    """Microseconds of each way; `best` is the tile that took the least."""
    times: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, calls in case.ways(rows):
        try:
            times[name] = measure(calls)
        except Exception as error:  # noqa: BLE001  # what a tile needs the device may not have
            failed[name] = f"{type(error).__name__}: {str(error)[-200:]}"
    tiles = {name: each for name, each in times.items() if name not in (BFLOAT16, WEIGHT_ONLY, "quantise")}
    best = min(tiles, key=tiles.__getitem__, default="")
    return {
        "layer": case.layer.name, "count": case.layer.count, "rows": rows, "microseconds": times,
        "tile": name_of(fp8_tile(rows, case.layer.weight_rows)), "best": best, "failed": failed,
    }  # fmt: skip


def passes(times: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Milliseconds of a pass's linear layers but the head, by rows; `best tiles`: each layer by its fastest."""
    result = []
    for rows in dict.fromkeys(entry["rows"] for entry in times):
        here = [entry for entry in times if entry["rows"] == rows]
        line: dict[str, Any] = {"rows": rows}
        for name in (BFLOAT16, WEIGHT_ONLY, DEFAULT, "best tiles"):
            found = [entry["microseconds"].get(entry["best"] if name == "best tiles" else name) for entry in here]
            known = all(each is not None for each in found)
            total = sum(entry["count"] * (each or 0) for entry, each in zip(here, found, strict=True))
            line[name] = round(total / 1e3, 3) if known else None
        result.append(line)
    return result


def compile_ahead(cases: Sequence[Case]) -> None:
    """Compile what is launched later, side by side. What fails is met again where it is launched."""
    try:
        with compiling_ahead():
            for case in cases:
                _by_scheme(case)
                for rows in CHECKED_ROWS:
                    index = torch.arange(rows, device=case.x.device)
                    for tile in candidates(rows, case.layer.weight_rows):
                        case.sums(index, tile)
                for rows in TIMED_ROWS:
                    for _, calls in case.ways(rows):
                        calls[0]()
    except Exception as error:  # noqa: BLE001  # whatever the compiler finds wrong with a tile
        print(f"not all kernels compile: {type(error).__name__}: {str(error)[-300:]}")


def report(checks: Sequence[dict[str, Any]], times: Sequence[dict[str, Any]]) -> None:
    """Print what is JSON elsewhere."""
    for found in checks:
        differing, failed = found["differing"], found["failed"]
        said = f"{found['layer']}: {found['compared']} ways compared, {len(differing)} differ, {len(failed)} failed"
        print(f"{said}; error of sums {found['error']:.1e}" if "error" in found else said)
        for word, lines in (("differs", differing), ("fails", failed)):
            for line in lines[:20]:
                print(f"  {word}: {line}")
    if not times:
        return
    heads = ("us of", "rows", BFLOAT16, WEIGHT_ONLY, DEFAULT, "quantise", "best tile's", "best tile")
    cells = []
    for entry in times:
        found = entry["microseconds"]
        ways = [found.get(name) for name in (BFLOAT16, WEIGHT_ONLY, DEFAULT, "quantise", entry["best"])]
        cells.append([entry["layer"], entry["rows"], *ways, entry["best"]])
    print(markdown_table(heads, cells))
    sums = passes(times)
    print(markdown_table(("ms of all layers, rows", *list(sums[0])[1:]), [list(line.values()) for line in sums]))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="a JSON file")
    parser.add_argument("--small", action="store_true", help="small layers, whose bits alone are compared")
    parser.add_argument("--seconds", type=float, default=75, help="begin no further layer's times after so long (75)")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    small = options.small or device.type == "cpu"
    counts = SMALL_ROWS if small else CHECKED_ROWS
    cases = [Case.random(layer, counts[-1], device) for layer in (SMALL if small else layers_8b()[:4])]
    if not small:
        compile_ahead(cases)
        print(f"compiled: {time.monotonic() - started:.0f} s", flush=True)
    checks = [check(case, counts) for case in cases]
    checks.append(check_norms(counts, SMALL_HIDDEN if small else HIDDEN, device))
    print(f"bits: {time.monotonic() - started:.0f} s", flush=True)
    times: list[dict[str, Any]] = []
    for rows in () if small else TIMED_ROWS:
        for case in cases:
            if time.monotonic() - started > options.seconds:
                print(f"no time for {case.layer.name} of {rows} rows")
                continue
            times.append(time_layer(case, rows))
    norms = [time_norms(rows, device) for rows in (() if small else TIMED_ROWS)]
    seconds = round(time.monotonic() - started, 1)
    if options.output:
        content = {
            "machine": gpu_machine(device.type), "seconds": seconds, "checks": checks, "times": times,
            "norms": norms, "passes": passes(times), "layers": [asdict(case.layer) for case in cases],
        }  # fmt: skip
        write_json(options.output, content)
    report(checks, times)
    if norms:
        cells = [[each["rows"], *each["microseconds"].values()] for each in norms]
        print(markdown_table(("us of norms, rows", *norms[0]["microseconds"]), cells))
    print(f"{seconds} s")
    return int(any(found["differing"] for found in checks))


if __name__ == "__main__":
    sys.exit(main())
