"""Check layers of experts bit for bit against linear layers of each expert's weight, and time them.

    python -m benchmarks.kernels.check_experts --output experts.json    # on a GPU; minutes
    python -m benchmarks.kernels.check_experts --shape MXFP4 --shape FP8    # those alone whose names have these parts
    python -m benchmarks.kernels.check_experts --small                  # a small layer, in Triton's interpreter too

Bits: for each model's layer and number of rows, each pair of a row and an expert against the linear layer of that
expert's weight, decoded if it is packed, and that row, grouped and not; choice, groups and sums against their twins;
rows together against rows alone. Exits with 1 on a difference. Times: microseconds of a layer of experts, router
included, in a CUDA graph of calls whose rows choose other experts each, beside the time that the bytes of the experts
woken take at the bandwidth of a kernel that copies.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

from benchmarks.kernels.check_attention import device_facts
from benchmarks.kernels.linear_operands import microseconds
from slipstream_kernels.ops.gpu.experts.combine_experts import combine_experts, combine_experts_reference
from slipstream_kernels.ops.gpu.experts.expert_linear import ExpertMatrix, expert_linear
from slipstream_kernels.ops.gpu.experts.fragment_experts import FragmentExperts
from slipstream_kernels.ops.gpu.experts.group_rows import (
    WORDS,
    ExpertGroups,
    are_grouped,
    group_rows,
    group_rows_reference,
    most_blocks,
    tokens_of,
)
from slipstream_kernels.ops.gpu.experts.packed_experts import PackedExperts
from slipstream_kernels.ops.gpu.experts.route_experts import route_experts, route_experts_reference
from slipstream_kernels.ops.gpu.linear import gated_linear, linear
from slipstream_kernels.ops.quantised_weight import Number

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048)
CALLS = 8
"""Of a graph that is timed."""


@dataclass(frozen=True, slots=True)
class MixtureShape:
    """A layer of experts: of `count` experts of `size` each row has `chosen`. number: what weights are packed in."""

    name: str
    hidden: int
    count: int
    chosen: int
    size: int
    number: Number | None = None
    group: int = 0
    fragments: bool = False


SHAPES = (
    MixtureShape("Qwen3-30B-A3B", 2048, 128, 8, 768),
    MixtureShape("Mixtral-8x7B", 4096, 8, 2, 14336),
    MixtureShape("Qwen3-30B-A3B, FP8 by blocks", 2048, 128, 8, 768, "e4m3", 128),
    MixtureShape("Qwen3-30B-A3B, FP8 by blocks, fragments", 2048, 128, 8, 768, "e4m3", 128, True),
    MixtureShape("Qwen3-30B-A3B, int4 by 128, fragments", 2048, 128, 8, 768, "int4", 128, True),
    MixtureShape("Qwen3-30B-A3B, int4 by 128", 2048, 128, 8, 768, "int4", 128),
    MixtureShape("gpt-oss-20b, bfloat16, gated by silu", 2880, 32, 4, 2880),
    MixtureShape("gpt-oss-20b, MXFP4, gated by silu", 2880, 32, 4, 2880, "e2m1", 32, True),
)
SMALL = (
    MixtureShape("small", 64, 6, 2, 48),
    MixtureShape("small, MXFP4", 64, 6, 2, 96, "e2m1", 32, True),
    MixtureShape("small, FP8, fragments", 128, 6, 2, 128, "e4m3", 128, True),
)


_EXPONENT = 127
"""Of a scale of 1."""
_MEAN_SIZE = {"e4m3": 100, "int4": 5}
"""Of random codes' numbers."""


class Scene:
    """One layer's weights, and rows with their scores."""

    def __init__(self, shape: MixtureShape, rows: int, device: torch.device) -> None:
        def normal(*sizes: int) -> torch.Tensor:
            return torch.randn(sizes, device=device, dtype=torch.bfloat16)

        self.shape = shape
        self.x = normal(rows, shape.hidden)
        self.router = normal(shape.count, shape.hidden) * shape.hidden**-0.5
        self.gate_up = random_experts(shape, (shape.count, 2 * shape.size, shape.hidden), device)
        self.down = random_experts(shape, (shape.count, shape.hidden, shape.size), device)
        self.expert_bytes = (self.gate_up.nbytes + self.down.nbytes) // shape.count


def random_experts(shape: MixtureShape, sizes: tuple[int, int, int], device: torch.device) -> ExpertMatrix:
    """Weights of a root mean square of one over that of the inputs, packed as `shape` says: every code but NaN."""
    scale = float(sizes[2]) ** -0.5
    if shape.number is None:
        return torch.randn(sizes, device=device, dtype=torch.bfloat16).mul_(scale)
    if shape.fragments:
        held = FragmentExperts.empty(shape.number, sizes, shape.group, device, zeros=False)
        held.codes.view(torch.uint8).random_(0, 256)
        if shape.number == "e2m1":
            middle = _EXPONENT + round(math.log2(scale / 3))
            held.scales.view(torch.uint8).random_(middle - 1, middle + 2)
        else:
            _no_numbers(held.codes.view(torch.uint8), shape.number)
            _random_scales(held.scales, scale / _MEAN_SIZE[shape.number])
        return held.settled()
    packed = PackedExperts.empty(shape.number, sizes, shape.group, device, zeros=False)
    packed.codes.random_(0, 256)
    _no_numbers(packed.codes, shape.number)
    _random_scales(packed.scales, scale / _MEAN_SIZE[shape.number])
    return packed


def _no_numbers(codes: torch.Tensor, number: Number) -> None:
    """Codes of e4m3 that are none become -0."""
    if number == "e4m3":
        codes[(codes & 0x7F) == 0x7F] = 0x80


def _random_scales(scales: torch.Tensor, middle: float) -> None:
    exponents = torch.randint(-1, 2, scales.shape, device=scales.device)
    scales.copy_(2.0 ** (exponents + round(math.log2(middle))))


class Layer:
    """The calls of one layer over so many rows, with room of its own. grouped: None as a pass chooses."""

    def __init__(self, scene: Scene, rows: torch.Tensor, *, grouped: bool | None = None) -> None:
        shape, count = scene.shape, len(rows)
        pairs = count * shape.chosen
        empty = partial(torch.empty, device=rows.device)
        self.scene, self.x = scene, rows
        self.scores = empty(count, shape.count, dtype=torch.float32)
        self.ids = empty(count, shape.chosen, dtype=torch.int32)
        self.weights = empty(count, shape.chosen, dtype=torch.float32)
        self.activated = empty(pairs, shape.size, dtype=torch.bfloat16)
        self.outputs = empty(pairs, shape.hidden, dtype=torch.float32)
        self.out = empty(count, shape.hidden, dtype=torch.bfloat16)
        self.groups = None
        if are_grouped(pairs, shape.count, shape.chosen) if grouped is None else grouped:
            tokens = tokens_of(pairs, shape.count)
            lines = most_blocks(pairs, shape.count, tokens)
            self.groups = ExpertGroups(empty(pairs, dtype=torch.int32), empty(lines, WORDS, dtype=torch.int32), tokens)

    def route(self) -> None:
        linear(self.x, self.scene.router, self.scores)
        route_experts(self.scores, None, self.ids, self.weights, experts=self.scene.shape.count, normalised=True)
        if self.groups is not None:
            group_rows(self.ids, self.groups, experts=self.scene.shape.count)

    def compute(self) -> None:
        expert_linear(self.x, self.scene.gate_up, self.activated, self.ids, self.groups, gated=True)
        expert_linear(self.activated, self.scene.down, self.outputs, self.ids, self.groups)
        combine_experts(self.outputs, self.weights, self.out, residual=self.x)

    def run(self) -> None:
        self.route()
        self.compute()

    @property
    def bytes_woken(self) -> int:
        """Of the experts that the rows have, after `run`."""
        return self.scene.expert_bytes * len(self.ids.unique())


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def check(scene: Scene, rows: int, *, exact: bool) -> dict[str, bool]:
    """What holds of the layer's bits; where not `exact`, as in the interpreter, sums may differ in theirs."""
    shape = scene.shape
    layer, other, alone = (
        Layer(scene, scene.x[:count], grouped=grouped) for count, grouped in ((rows, True), (rows, False), (1, None))
    )
    for each in (layer, other, alone):
        each.outputs.fill_(torch.nan)
        each.run()
    assert layer.groups is not None
    ids, weights = torch.empty_like(layer.ids), torch.empty_like(layer.weights)
    route_experts_reference(layer.scores, None, ids, weights, experts=shape.count, normalised=True)
    groups = ExpertGroups(
        torch.empty_like(layer.groups.order), torch.empty_like(layer.groups.blocks), layer.groups.tokens
    )
    group_rows_reference(ids, groups, experts=shape.count)
    total = torch.empty_like(layer.out)
    combine_experts_reference(layer.outputs, layer.weights, total, residual=layer.x)
    there = groups.blocks[:, 2] > 0

    def close(a: torch.Tensor, b: torch.Tensor) -> bool:
        return same(a, b) if exact else torch.allclose(a.float(), b.float(), rtol=2e-2, atol=2e-2)

    return {
        "choice": torch.equal(ids, layer.ids),
        "groups": torch.equal(groups.order, layer.groups.order)
        and torch.equal(groups.blocks[there], layer.groups.blocks[there]),
        "gate_up": close(layer.activated, plain_products(layer, gated=True)),
        "down": close(layer.outputs, plain_products(layer, gated=False)),
        "sums": same(total, layer.out),
        "ungrouped": close(layer.out, other.out),
        "alone": close(layer.out[:1], alone.out),
    }


def plain_products(layer: Layer, *, gated: bool) -> torch.Tensor:
    """Of each pair by a linear layer of its expert's weight, some rows at a time."""
    scene, experts = layer.scene, layer.ids.flatten()
    x = layer.x.repeat_interleave(scene.shape.chosen, 0) if gated else layer.activated
    out = torch.empty_like(layer.activated if gated else layer.outputs)
    for expert in experts.unique().tolist():
        pairs = (experts == expert).nonzero().flatten()
        part = torch.empty(len(pairs), out.shape[1], dtype=out.dtype, device=out.device)
        op, weight = (gated_linear, scene.gate_up) if gated else (linear, scene.down)
        op(x[pairs], weight[expert] if isinstance(weight, torch.Tensor) else weight.decoded(expert), part)
        out[pairs] = part
    return out


def bandwidth(device: torch.device) -> float:
    """Bytes a microsecond that a kernel reads and writes which negates numbers: a graph's copy is another engine's."""
    source = torch.zeros(2**28, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / microseconds([lambda: torch.neg(source, out=target)])


def times(scene: Scene, device: torch.device, rate: float) -> Iterator[dict[str, Any]]:
    """Of each number of rows: the layer, its parts, and its bytes."""
    shape = scene.shape
    for rows in ROWS:
        layers = [Layer(scene, torch.randn(rows, shape.hidden, device=device).bfloat16()) for _ in range(CALLS)]
        whole = microseconds([layer.run for layer in layers])
        woken = sum(layer.bytes_woken for layer in layers) / CALLS
        yield {
            "shape": shape.name,
            "rows": rows,
            "grouped": layers[0].groups is not None,
            "experts_woken": round(woken / scene.expert_bytes, 1),
            "microseconds": round(whole, 2),
            "routing": round(microseconds([layer.route for layer in layers]), 2),
            "floor": round(woken / rate, 2),
            "of_floor": round(woken / rate / whole, 3),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="a JSON file")
    parser.add_argument("--small", action="store_true", help="one small layer, whose bits alone are checked")
    parser.add_argument("--shape", action="append", help="part of the names of shapes that are wanted (default: all)")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    small = options.small or device.type == "cpu"
    torch.manual_seed(1)
    checks: list[dict[str, Any]] = []
    timed: list[dict[str, Any]] = []
    rate = 0.0 if small else bandwidth(device)
    parts: list[str] = options.shape or [""]
    shapes = [shape for shape in (SMALL if small else SHAPES) if any(part in shape.name for part in parts)]
    if not shapes:
        parser.error(f"--shape {options.shape}: no shape's name has any of these parts")
    for shape in shapes:
        rows = (1, 5, 40) if small else ROWS
        scene = Scene(shape, max(rows), device)
        for count in rows:
            checks.append({"shape": shape.name, "rows": count, **check(scene, count, exact=device.type == "cuda")})
            print(json.dumps(checks[-1]), flush=True)
        if not small:
            for entry in times(scene, device, rate):
                timed.append(entry)
                print(json.dumps(entry), flush=True)
        del scene
    name = torch.cuda.get_device_name() if device.type == "cuda" else "interpreter"
    if options.output:
        report = {
            "machine": device_facts() if device.type == "cuda" else {"device": name},
            "bytes_a_microsecond": rate, "shapes": [asdict(shape) for shape in shapes],
            "checks": checks, "times": timed,
        }  # fmt: skip
        options.output.write_text(json.dumps(report, indent=1), encoding="utf-8")
    bad = [entry for entry in checks if not all(value for value in entry.values() if isinstance(value, bool))]
    print(f"{name}: {len(checks)} checks, {len(bad)} with differences")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
