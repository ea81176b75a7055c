"""Check layers with LoRA adapters, as few kernels, bit for bit against a kernel for each step, and time both.

    python -m benchmarks.kernels.check_adapters --output adapters.json    # on a GPU; a minute
    python -m benchmarks.kernels.check_adapters --small                   # small layers, in Triton's interpreter too

Layers of Llama-3.1-8B's shapes, 16 adapters of rank 16, of which each row has one or none. Bits: what a layer's one
kernel, and the one behind it that expands, leave, against layer, `shrink`, `expand` and what follows as kernels of
their own. Exits with 1 on a difference. Times: microseconds of a layer without adapters (`without`), with them as few
kernels (`together`) and as many (`apart`), in CUDA graphs of calls over weights enough that the L2 cache holds none.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from benchmarks.kernels.linear_operands import microseconds
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from slipstream_kernels.jit.compile_ahead import compiling_ahead
from slipstream_kernels.ops.gpu.linear import gated_linear, linear
from slipstream_kernels.ops.gpu.lora import expand_rotary, shrinking_linear
from slipstream_kernels.ops.gpu.lora.adapter_rows import AdapterRows, gather_adapter_rows
from slipstream_kernels.ops.gpu.lora.expand import ExpandTiles, expand
from slipstream_kernels.ops.gpu.lora.expand_gate import expand_gate
from slipstream_kernels.ops.gpu.lora.shrink import shrink
from slipstream_kernels.ops.gpu.rotary import rotary_write
from slipstream_kernels.ops.gpu.rotary_linear import rotary_linear
from slipstream_kernels.ops.gpu.silu_mul import silu_mul
from slipstream_kernels.ops.rope import Rope

ROWS = (1, 16, 17, 64, 65, 128, 256)
TIMED_ROWS = (1, 16, 64, 128, 256)
L2_BYTES = 60 << 20


@dataclass(frozen=True, slots=True)
class Layer:
    """Heads of queries and of keys where it makes these, of `dim`; gated where it has two parts that are none."""

    name: str
    inputs: int
    parts: tuple[int, ...]
    heads: tuple[int, int] = (0, 0)
    dim: int = 128


LAYERS = (
    Layer("qkv", 4096, (4096, 1024, 1024), (32, 8)),
    Layer("o", 4096, (4096,)),
    Layer("gate_up", 4096, (14336, 14336)),
    Layer("down", 14336, (4096,)),
)
SMALL = (
    Layer("qkv", 32, (64, 64, 64), (1, 1), 64),
    Layer("o", 48, (72,)),
    Layer("gate_up", 32, (72, 72)),
)


class Scene:
    """A layer's operands, random. `exact`: all sums are exact, whatever their order."""

    def __init__(
        self, layer: Layer, rows: int, adapters: int, rank: int, copies: int, device: str, *, exact: bool
    ) -> None:
        self._generator = torch.Generator(device).manual_seed(rows + layer.inputs)
        self._exact, self._device, self._layer = exact, device, layer
        outputs, ranks = sum(layer.parts), len(layer.parts) * rank
        self.weights = [self._make(outputs, layer.inputs) for _ in range(copies)]
        self.a = [self._make(adapters, ranks, layer.inputs) for _ in range(copies)]
        self.b = [self._make(adapters, outputs, rank) for _ in range(copies)]
        self.scales = torch.ones(adapters, ranks, device=device)
        self.x, self.residual = self._make(rows, layer.inputs), self._make(rows, outputs)
        self.gated = layer.name == "gate_up"
        self.tiles = ExpandTiles.of(layer.parts, device, grouped=self.gated)
        self.rows = AdapterRows.empty(rows, adapters, 16 if rows <= 256 else 64, device)
        self.places = torch.arange(rows, dtype=torch.int32, device=device)
        slots = torch.randint(-1, adapters, (rows,), generator=self._generator, device=device).int()
        slots[0] = adapters - 1
        gather_adapter_rows(self.places, self.places, slots, adapters, self.rows)
        self.shrunk = torch.zeros(rows, ranks, dtype=torch.bfloat16, device=device)
        heads, kv_heads = layer.heads
        self.table = torch.from_numpy(Rope(10_000.0).table(rows + 1, layer.dim)).to(device)
        shapes = ((rows, heads), (kv_heads, rows), (kv_heads, rows)) if heads else ((rows, outputs // 2),)
        self.outs = [
            torch.zeros(*shape, *([layer.dim] if heads else []), dtype=torch.bfloat16, device=device)
            for shape in (shapes if heads or self.gated else ())
        ]
        self.out = torch.zeros(rows, outputs, dtype=torch.float32 if self.gated else torch.bfloat16, device=device)

    def _make(self, *shape: int) -> torch.Tensor:
        if self._exact:
            return (torch.randint(-8, 9, shape, generator=self._generator, device=self._device) / 8).bfloat16()
        made = torch.randn(shape, generator=self._generator, device=self._device)
        return made.mul_(shape[-1] ** -0.5).bfloat16()

    @property
    def results(self) -> list[torch.Tensor]:
        return [each.clone() for each in self.outs or [self.out]] + [self.shrunk.clone()]

    def without(self, copy: int = 0) -> None:
        weight = self.weights[copy]
        if self._layer.heads[0]:
            rotary_linear(self.x, weight, self.places, self.places, self.table, self.out, *self.outs)
        elif self.gated:
            gated_linear(self.x, weight, *self.outs)
        else:
            linear(self.x, weight, self.out, residual=self.residual)

    def together(self, copy: int = 0) -> None:
        self._with_adapters(copy, shrinking_linear.shrinking_linear, expand_rotary.expand_rotary, expand_gate)

    def apart(self, copy: int = 0) -> None:
        def gate(*operands: torch.Tensor) -> None:
            expand(*operands[:-1])  # type: ignore[arg-type]  # the tiles and rows that are among them
            silu_mul(*operands[-2:])

        self._with_adapters(
            copy,
            shrinking_linear.in_two_steps(linear, shrink),
            expand_rotary.in_two_steps(expand, rotary_write),
            gate,
        )

    def _with_adapters(
        self, copy: int, layer: Callable[..., None], rotary: Callable[..., None], gate: Callable[..., None]
    ) -> None:
        own = self.a[copy], self.scales, self.rows, self.shrunk
        shrunk = self.shrunk, self.b[copy], self.tiles, self.rows
        if self._layer.heads[0]:
            layer(self.x, self.weights[copy], self.out, *own)
            rotary(*shrunk, self.out, self.places, self.places, self.table, *self.outs)
        elif self.gated:
            layer(self.x, self.weights[copy], self.out, *own, gated=True)
            gate(*shrunk, self.out, *self.outs)
        else:
            layer(self.x, self.weights[copy], self.out, *own, residual=self.residual)
            expand(*shrunk, self.out)


def differing(scene: Scene) -> int:
    """Elements that differ between few kernels and many."""
    scene.apart()
    expected = scene.results
    for each in (*scene.outs, scene.out):
        each.fill_(torch.nan)
    scene.shrunk.zero_()
    scene.together()
    pairs = zip(scene.results, expected, strict=True)
    return sum(int((one.view(torch.int16) != other.view(torch.int16)).sum()) for one, other in pairs)


def times(scene: Scene) -> dict[str, float]:
    """Microseconds of a layer."""
    copies = range(len(scene.weights))
    ways = {"without": scene.without, "together": scene.together, "apart": scene.apart}
    return {name: microseconds([partial(way, copy) for copy in copies]) for name, way in ways.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="small layers, whose bits alone are checked")
    parser.add_argument("--adapters", type=int, default=16, help="how many (16)")
    parser.add_argument("--rank", type=int, default=16, help="of each (16)")
    parser.add_argument("--output", type=Path, help="a JSON file")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    small = options.small or device == "cpu"
    found: list[dict[str, Any]] = []
    cases = [(layer, rows) for layer in (SMALL if small else LAYERS) for rows in ((2, 33) if small else ROWS)]
    if device == "cuda":
        with compiling_ahead():
            for layer, rows in cases:
                scene = Scene(layer, rows, options.adapters, options.rank, 1, device, exact=False)
                for way in (scene.without, scene.together, scene.apart):
                    way()
    for layer, rows in cases:
        timed = not small and rows in TIMED_ROWS
        copies = 1 + 2 * L2_BYTES // (2 * layer.inputs * sum(layer.parts)) if timed else 1
        sizes = rows, options.adapters, options.rank, copies, device
        scene = Scene(layer, *sizes, exact=device == "cpu")
        entry = {"layer": layer.name, "rows": rows, "differing": differing(scene)}
        found.append(entry | (times(scene) if timed else {}))
        print(found[-1], flush=True)
    if timings := [list(entry.values()) for entry in found if "without" in entry]:
        print(markdown_table(["layer", "rows", "differing", "without us", "together us", "apart us"], timings))
    if options.output:
        shapes = [asdict(layer) for layer in (SMALL if small else LAYERS)]
        write_json(options.output, {"machine": gpu_machine(device), "layers": shapes, "results": found})
    bad = sum(entry["differing"] > 0 for entry in found)
    print(f"{len(found)} layers and numbers of rows, {bad} with differences")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
