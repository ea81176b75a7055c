"""Decide by experiment whether products of e4m3 with e4m3 can be in the exact mode, and what time they would save.

    python -m benchmarks.kernels.check_fp8_products --output fp8_products.json   # on a Hopper GPU; two minutes at most
    python -m benchmarks.kernels.check_fp8_products --small                      # small sizes, in the interpreter too

Bits: products of the K of an 8B model's layers by `products.SCHEMES`, each by tiles of several sizes and both
orders of operands, and by the library, which rounds those with scales to bfloat16. Each way's rows alone, among few and
among many, at their own places and at others, against the same way's rows of the whole; and the ways of one scheme
against one another. Operands are random and adversarial. Errors: against float64, beside the bfloat16 layer on the same
numbers. Times: linear layers of Llama-3.1-8B beside the bfloat16 layer and FP8 weights decoded to bfloat16, in CUDA
graphs that go round weights larger than the cache. Exits with 0 whatever comes out.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from benchmarks.kernels.check_fp8_products.operands import KINDS, Scene, exact
from benchmarks.kernels.check_fp8_products.product_times import ROWS as TIMED_ROWS
from benchmarks.kernels.check_fp8_products.product_times import TimedLayer, compile_all, passes, scaled_mm, time_layer
from benchmarks.kernels.check_fp8_products.products import (
    SCHEMES,
    Fp8Operands,
    Scheme,
    SchemeTile,
    fp8_products,
    instructions,
)
from benchmarks.kernels.linear_candidates import layers_8b
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from slipstream_kernels.jit.compile_ahead import compiling_ahead
from slipstream_kernels.ops.gpu.linear import linear

COUNTS = (1, 2, 3, 16, 17, 64, 100, 128, 256, 512, 2048)
SHAPES = ((2048, 4096), (2048, 14336))
"""(N, K)."""
TILES = tuple(
    SchemeTile(tokens, outputs, warps, tokens_first)
    for tokens_first in (False, True)
    for tokens in (16, 64, 128)
    for outputs in (64, 128)
    for warps in (4, 8)
)
OTHER_DEPTHS = (SchemeTile(64, 64, 4, False, 64), SchemeTile(64, 64, 4, False, 256), SchemeTile(128, 64, 4, True, 256))
"""Also of schemes without blocks, whose promotions steps of so many elements hold."""

SMALL_COUNTS, SMALL_SHAPES = (1, 17), ((96, 256),)
SMALL_TILES = SchemeTile(16, 64, 4, False), SchemeTile(16, 32, 4, True)
LIBRARY: dict[str, tuple[bool, dict[str, Any]]] = {
    "_scaled_mm tensor": (False, {"dtype": torch.float32, "fast": False, "tensor": True}),
    "_scaled_mm tensor fast": (False, {"dtype": torch.float32, "fast": True, "tensor": True}),
    "_scaled_mm rows": (False, {"dtype": torch.bfloat16, "fast": False}),
    "_scaled_mm rows fast": (False, {"dtype": torch.bfloat16, "fast": True}),
    "_scaled_mm blocks": (True, {"dtype": torch.bfloat16, "fast": False}),
}

Compute = Callable[[Fp8Operands], torch.Tensor]


@dataclass(slots=True)
class Found:
    """What one way does with one shape."""

    scheme: str
    way: str
    inputs: int
    instructions: list[str] = field(default_factory=list)
    group: str = ""
    """Ways of one scheme and shape with the same group have the same bits."""

    differing: dict[str, dict[str, int]] = field(default_factory=dict)
    """Rows that differ from those of the whole, by part and kind of row."""

    failed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Error:
    """How far products are from float64's."""

    scheme: str
    group: str
    inputs: int
    normal: float
    """Norm of the error over that of the results, of operands of the kind `normal`."""

    worst: dict[str, float]
    """Largest error over the sum of the terms' magnitudes, by kind of row."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def differing_rows(got: torch.Tensor, whole: torch.Tensor, index: torch.Tensor) -> dict[str, int]:
    """Rows of `got` whose bits are not those of the rows `index` of the whole, by kind."""
    bad = (bits(got) != bits(whole)[index]).any(1)
    if not bad.any():
        return {}
    numbers = (index[bad] % len(KINDS)).tolist()
    return {kind: count for number, kind in enumerate(KINDS) if (count := numbers.count(number))}


def check_way(compute: Compute, scene: Scene, found: Found) -> torch.Tensor | None:
    """Fill in what differs and what fails; returns the whole's results, unless that fails."""
    try:
        whole = compute(scene.whole)
    except Exception as error:  # noqa: BLE001  # whatever the compiler, the library or the device finds wrong with it
        found.failed["whole"] = f"{type(error).__name__}: {str(error)[-300:]}"
        return None
    for part in scene.parts:
        try:
            if differing := differing_rows(compute(part.operands), whole, part.index):
                found.differing[part.name] = differing
        except Exception as error:  # noqa: BLE001  # as above
            found.failed[part.name] = f"{type(error).__name__}: {str(error)[-300:]}"
    return whole


def error_of(
    scheme: str, group: str, got: torch.Tensor, scene: Scene, expected: torch.Tensor, size: torch.Tensor
) -> Error:
    off = got.double() - expected
    step = len(KINDS)
    normal = float(off[::step, ::step].norm() / expected[::step, ::step].norm())
    relative = (off.abs() / size.clamp_min(torch.finfo(torch.float64).tiny)).amax(1)
    worst = {kind: float(relative[number::step].max()) for number, kind in enumerate(KINDS) if number < len(got)}
    return Error(scheme, group, scene.whole.x.shape[1], normal, worst)


def tiles_of(scheme: Scheme, *, small: bool) -> Sequence[SchemeTile]:
    if small:
        return SMALL_TILES
    deep = [tile for tile in OTHER_DEPTHS if not scheme.blocks and tile.depth >= (scheme.imprecise or 0)]
    return (*TILES, *deep)


class Experiment:
    """Bits and errors of every way, shape by shape."""

    def __init__(self, device: torch.device, *, small: bool) -> None:
        self.found: list[Found] = []
        self.errors: list[Error] = []
        self._device, self._small = device, small
        counts = SMALL_COUNTS if small else COUNTS
        self._scenes = [
            Scene.random(counts, *shape, device, blocks=blocks)
            for shape in (SMALL_SHAPES if small else SHAPES)
            for blocks in (False, True)
        ]

    def compile_all(self) -> None:
        """Launch the kernel of every tile once."""
        for scene in self._scenes[:2]:
            for scheme in self._schemes(scene):
                for tile in tiles_of(scheme, small=self._small):
                    self._products(scene.parts[0].operands, scheme, tile, None)

    def run(self) -> None:
        for scene in self._scenes:
            expected, size = exact(scene.whole)
            known: dict[str, torch.Tensor] = {}
            for scheme in self._schemes(scene):
                for group, got in self._check_scheme(scene, scheme).items():
                    self.errors.append(error_of(scheme.name, group, got, scene, expected, size))
                    known[f"{scheme.name}: {group}"] = got
            if self._device.type == "cuda":
                for name, got in self._check_library(scene, known):
                    self.errors.append(error_of(name, "", got, scene, expected, size))
            if not self._is_of_blocks(scene):
                self.errors.append(error_of("bfloat16 layer", "", self._bfloat16(scene.whole), scene, expected, size))

    @staticmethod
    def _is_of_blocks(scene: Scene) -> bool:
        return len(scene.whole.x_scales) > 1

    def _schemes(self, scene: Scene) -> list[Scheme]:
        return [scheme for scheme in SCHEMES if scheme.blocks == self._is_of_blocks(scene)]

    def _products(self, given: Fp8Operands, scheme: Scheme, tile: SchemeTile, found: Found | None) -> torch.Tensor:
        out = torch.full((len(given.x), len(given.weight)), torch.nan, device=self._device)
        compiled = fp8_products(given, out, scheme, tile)
        if found is not None and compiled is not None and not found.instructions:
            found.instructions = instructions(compiled.asm["ptx"])
        return out

    def _check_scheme(self, scene: Scene, scheme: Scheme) -> dict[str, torch.Tensor]:
        """Results of each group of tiles with the same bits, by its name."""
        groups: dict[str, torch.Tensor] = {}
        for tile in tiles_of(scheme, small=self._small):
            found = Found(scheme.name, tile.name, scene.whole.x.shape[1])
            self.found.append(found)
            whole = check_way(partial(self._products, scheme=scheme, tile=tile, found=found), scene, found)
            if whole is None:
                continue
            same = [name for name, other in groups.items() if torch.equal(bits(other), bits(whole))]
            found.group = same[0] if same else str(len(groups) + 1)
            groups.setdefault(found.group, whole)
        return groups

    def _check_library(self, scene: Scene, known: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
        """The library's ways and results. A group is the names of all schemes and groups that have the same bits."""
        for name, (blocks, options) in LIBRARY.items():
            if blocks != self._is_of_blocks(scene):
                continue
            found = Found(name, "as the library chooses", scene.whole.x.shape[1], ["the library's"])
            self.found.append(found)
            whole = check_way(partial(_by_library, **options), scene, found)
            if whole is None:
                continue
            same = [each for each, other in known.items() if torch.equal(bits(other.to(whole.dtype)), bits(whole))]
            found.group = ", ".join(same) or "its own"
            yield name, whole

    def _bfloat16(self, given: Fp8Operands) -> torch.Tensor:
        out = torch.empty(len(given.x), len(given.weight), device=self._device)
        linear(given.x.to(torch.bfloat16), given.weight.to(torch.bfloat16), out)
        return out * given.x_scales.t() * given.weight_scales.t()


def _by_library(given: Fp8Operands, dtype: torch.dtype, *, fast: bool, tensor: bool = False) -> torch.Tensor:
    made = scaled_mm(given, dtype, fast=fast, tensor=tensor)
    return made * (given.x_scales.t() * given.weight_scales.t()) if tensor else made


@dataclass(frozen=True, slots=True)
class Judged:
    """The ways of a scheme that have the same instructions, over all shapes."""

    scheme: str
    instructions: str
    ways: int
    keep_rows: int
    """Ways of which no row that was computed depends on how many there are, on its place and on what is beside it."""

    groups: int
    """Of ways with the same bits for all shapes."""

    failed: int
    """Ways that did not compute everything."""

    @property
    def exact(self) -> bool:
        """Any of the ways may stand for any other."""
        return self.keep_rows == self.ways and self.groups == 1 and not self.failed

    def __str__(self) -> str:
        said = f"{self.scheme}, {self.instructions}: {self.keep_rows} of {self.ways} ways keep every row's bits"
        said += f", and they fall into {self.groups} groups of equal bits"
        return said + (f"; {self.failed} failed somewhere" if self.failed else "") + (": EXACT" if self.exact else "")


def judge(found: Sequence[Found]) -> list[Judged]:
    by_way: dict[tuple[str, str], list[Found]] = {}
    for each in found:
        by_way.setdefault((each.scheme, each.way), []).append(each)
    sets: dict[tuple[str, str], list[list[Found]]] = {}
    for (scheme, _), shapes in by_way.items():
        sets.setdefault((scheme, " and ".join(shapes[0].instructions) or "unknown instructions"), []).append(shapes)
    return [
        Judged(
            scheme,
            names,
            len(ways),
            sum(all(each.group and not each.differing for each in shapes) for shapes in ways),
            len({tuple(each.group for each in shapes) for shapes in ways}),
            sum(any(each.failed for each in shapes) for shapes in ways),
        )
        for (scheme, names), ways in sets.items()
    ]


def verdict(judged: Sequence[Judged]) -> Iterator[str]:
    """One line for each set of ways, and what follows for FP8 instructions."""
    yield from map(str, judged)
    own = [each for each in judged if "e4m3" in each.instructions]
    good = [each.scheme for each in own if each.exact]
    if not own:
        yield "no kernel has FP8 instructions: nothing follows for the exact mode"
    elif good:
        yield f"FP8 instructions can be in the exact mode, as to rows and the tiles here, by: {'; '.join(good)}"
    else:
        yield "FP8 instructions cannot be in the exact mode: in no scheme is a row the same for all of its tiles"


def report(experiment: Experiment, judged: Sequence[Judged], times: Sequence[dict[str, Any]]) -> None:
    """Print what is JSON elsewhere: failures, the verdict, and tables."""
    for each in experiment.found:
        for part, message in each.failed.items():
            print(f"fails: {each.scheme}, {each.way}, K {each.inputs}, {part}: {message}")
    print(*verdict(judged), sep="\n")
    heads = ("scheme", "instructions", "ways", "keep rows", "groups", "failed", "exact")
    print(markdown_table(heads, [[*asdict(each).values(), "yes" if each.exact else "no"] for each in judged]))
    cells = [
        [each.scheme, each.group, each.inputs, f"{each.normal:.1e}", *(f"{worst:.1e}" for worst in each.worst.values())]
        for each in experiment.errors
    ]
    print(markdown_table(("error of", "group", "K", "normal", *KINDS), cells))
    if times:
        names = list(dict.fromkeys(name for entry in times for name in entry["microseconds"]))
        rows = [[e["layer"], e["rows"], *map(e["microseconds"].get, names)] for e in times]
        print(markdown_table(("us of", "rows", *names), rows))
        names = [name for name in names if "quantise" not in name]
        rows = [["all layers", entry["rows"], *map(entry.get, names)] for entry in passes(times)]
        print(markdown_table(("ms of", "rows", *names), rows))


def compile_ahead(experiment: Experiment, layers: Sequence[TimedLayer]) -> None:
    """Compile what is launched later, side by side. What fails is met again where it is launched."""
    try:
        with compiling_ahead():
            experiment.compile_all()
            for layer in layers:
                for rows in TIMED_ROWS:
                    compile_all(layer, rows)
    except Exception as error:  # noqa: BLE001  # whatever the compiler finds wrong with a tile
        print(f"not all kernels compile: {type(error).__name__}: {str(error)[-300:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.check_fp8_products",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, help="a JSON file")
    parser.add_argument("--small", action="store_true", help="small sizes, whose bits alone are compared")
    parser.add_argument("--seconds", type=float, default=95, help="begin no further layer's times after so long (95)")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(1)
    small = options.small or device.type == "cpu"
    experiment = Experiment(device, small=small)
    layers = [] if small else [TimedLayer.random(layer, max(TIMED_ROWS), device) for layer in layers_8b()[:4]]
    if device.type == "cuda":
        compile_ahead(experiment, layers)
        print(f"compiled: {time.monotonic() - started:.0f} s", flush=True)
    experiment.run()
    print(f"bits: {time.monotonic() - started:.0f} s", flush=True)
    times: list[dict[str, Any]] = []
    for rows in TIMED_ROWS:
        for layer in layers:
            if time.monotonic() - started > options.seconds:
                print(f"no time for {layer.layer.name} of {rows} rows")
                continue
            times.append(time_layer(layer, rows))
    judged = judge(experiment.found)
    seconds = round(time.monotonic() - started, 1)
    if options.output:
        content = {
            "machine": gpu_machine(device.type), "seconds": seconds, "verdict": list(verdict(judged)),
            "judged": [asdict(each) | {"exact": each.exact} for each in judged],
            "bits": [asdict(each) for each in experiment.found],
            "errors": [asdict(each) for each in experiment.errors], "times": times, "passes": passes(times),
        }  # fmt: skip
        write_json(options.output, content)
    print(f"{seconds} s")
    report(experiment, judged, times)
    return 0


if __name__ == "__main__":
    sys.exit(main())
