"""Fast mode against exact mode, part by part, at the shapes of an 8B model on one GPU.

    python -m benchmarks.kernels.check_fast_mode [--output FILE] [--parts linear compiled attention]

linear: the linear layers of a pass by our kernels and by cuBLAS. compiled: a layer without its attention by our norm
and cuBLAS, and the same through torch.compile. attention: ours and FlashInfer's, results compared. Times are medians
of CUDA graphs that read more than the cache holds; a layer's in microseconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.attention_scenes import Pass, relative_error
from benchmarks.kernels.attention_speed import HEAD_DIM, HEADS, KV_HEADS, PAGE_SIZE, graph_time, random_passes
from benchmarks.lib.report import machine, markdown_table, write_json
from slipstream_kernels.models.gpu.forward.flashinfer_attention import (
    DecodeAttention,
    FlashInferWorkspace,
    PagedShape,
    PrefillAttention,
)
from slipstream_kernels.models.gpu.forward.flashinfer_sizes import PlainRows, float_bytes
from slipstream_kernels.ops.gpu.library_linear import LibraryGatedLinear, library_linear
from slipstream_kernels.ops.gpu.linear import gated_linear, linear
from slipstream_kernels.ops.gpu.prefill_attention import PREFILL_COLUMNS, prefill_attention
from slipstream_kernels.ops.gpu.prefix_attention import PREFIX_COLUMNS, prefix_attention
from slipstream_kernels.ops.gpu.rms_norm import rms_norm
from slipstream_kernels.ops.gpu.tail_attention import tail_attention

HIDDEN, QKV, INTERMEDIATE, EPS = 4096, 6144, 14336, 1e-5
ROWS = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
COMPILED_ROWS = (1, 64, 256, 4096)
LAYERS = 4
PARTS = ("linear", "compiled", "attention")
LIMIT = 8e-3
"""Largest relative distance between two attentions that round to bfloat16 in different places."""

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer."""

    norms: tuple[torch.Tensor, torch.Tensor]
    qkv: torch.Tensor
    o: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """What a layer computes for some rows."""

    x: torch.Tensor
    normed: torch.Tensor
    qkv: torch.Tensor
    attended: torch.Tensor
    activated: torch.Tensor


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def weight(outputs: int, inputs: int) -> torch.Tensor:
    return random(outputs, inputs).mul_(inputs**-0.5)


def layers() -> list[Layer]:
    return [
        Layer(
            (random(HIDDEN), random(HIDDEN)),
            weight(QKV, HIDDEN),
            weight(HIDDEN, HIDDEN),
            weight(2 * INTERMEDIATE, HIDDEN),
            weight(HIDDEN, INTERMEDIATE),
        )
        for _ in range(LAYERS)
    ]


def rows_of(count: int) -> Rows:
    return Rows(*(random(count, size) for size in (HIDDEN, HIDDEN, QKV, HIDDEN, INTERMEDIATE)))


Linear = Callable[..., None]


def linears(layer: Layer, r: Rows, product: Linear, gated: Linear) -> None:
    product(r.normed, layer.qkv, r.qkv)
    product(r.attended, layer.o, r.x, residual=r.x)
    gated(r.normed, layer.gate_up, r.activated)
    product(r.activated, layer.down, r.x, residual=r.x)


def by_ops(layer: Layer, r: Rows, gated: Linear) -> None:
    """A layer but its rotation and attention, as fast mode runs it."""
    rms_norm(r.x, layer.norms[0], r.normed, EPS)
    library_linear(r.normed, layer.qkv, r.qkv)
    library_linear(r.attended, layer.o, r.x, residual=r.x)
    rms_norm(r.x, layer.norms[1], r.normed, EPS)
    gated(r.normed, layer.gate_up, r.activated)
    library_linear(r.activated, layer.down, r.x, residual=r.x)


def plain_layer(
    x: torch.Tensor, attended: torch.Tensor, norms: tuple[torch.Tensor, torch.Tensor], *weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in torch: queries, keys and values, and the residual stream."""
    qkv_weight, o, gate_up, down = weights
    qkv = torch.nn.functional.rms_norm(x, (HIDDEN,), norms[0], EPS) @ qkv_weight.t()
    x = torch.addmm(x, attended, o.t())
    gate, up = (torch.nn.functional.rms_norm(x, (HIDDEN,), norms[1], EPS) @ gate_up.t()).chunk(2, dim=-1)
    return qkv, torch.addmm(x, torch.nn.functional.silu(gate) * up, down.t())


def layer_time(run: Callable[[Layer], object], every: Sequence[Layer]) -> float:
    def all_layers() -> None:
        for layer in every:
            run(layer)

    return graph_time(all_layers) / len(every) * 1e6


def measure_linear(every: Sequence[Layer]) -> list[Result]:
    found = []
    library_gated = LibraryGatedLinear(random(max(ROWS) * 2 * INTERMEDIATE))
    for count in ROWS:
        r = rows_of(count)
        found.append(
            {
                "rows": count,
                "ours": layer_time(partial(linears, r=r, product=linear, gated=gated_linear), every),
                "library": layer_time(partial(linears, r=r, product=library_linear, gated=library_gated), every),
            }
        )
    return found


def measure_compiled(every: Sequence[Layer]) -> list[Result]:
    found = []
    library_gated = LibraryGatedLinear(random(max(COMPILED_ROWS) * 2 * INTERMEDIATE))
    for count in COMPILED_ROWS:
        r = rows_of(count)
        torch._dynamo.reset()  # noqa: SLF001  # its public name warns under some versions that dynamo is private
        begun = time.monotonic()
        compiled = torch.compile(plain_layer, dynamic=False)

        def run(layer: Layer, compiled: Any = compiled, r: Rows = r) -> None:
            compiled(r.x, r.attended, layer.norms, layer.qkv, layer.o, layer.gate_up, layer.down)

        for layer in every:
            run(layer)
        torch.cuda.synchronize()
        seconds = time.monotonic() - begun
        found.append(
            {
                "rows": count,
                "ops": layer_time(partial(by_ops, r=r, gated=library_gated), every),
                "compiled": layer_time(run, every),
                "seconds to compile": seconds,
            }
        )
    return found


def shape_of(one: Pass) -> PagedShape:
    return PagedShape(HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE, one.keys.shape[1] // PAGE_SIZE)


def int32(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def our_decode(passes: Sequence[Pass], out: torch.Tensor) -> Callable[[], None]:
    first = passes[0]
    partials = first.partials()
    segments, offsets = first.segments(PREFIX_COLUMNS)

    def run() -> None:
        for one in passes:
            kv = (one.q, one.keys, one.values, one.page_table, one.page_size)
            prefix_attention(*kv, segments, offsets, partials, columns=PREFIX_COLUMNS)
            rows = (one.lines, one.prefix_lengths, one.paths, one.depths, one.write_slots, one.decode_rows)
            tail_attention(*kv, *rows, partials, out)

    return run


def their_passes(
    passes: Sequence[Pass], attention: DecodeAttention | PrefillAttention, out: torch.Tensor
) -> Callable[[], None]:
    """All passes with one plan: they have the same lengths, and the first one's pages are gathered for all."""

    def run() -> None:
        attention.gather()
        for one in passes:
            attention.run(one.q, *one.bfloat16, out)

    return run


def distance(run: Callable[[], None], other: Callable[[], None], out: torch.Tensor) -> float:
    """Relative distance between what two ways of attention leave in `out`."""
    results = []
    for way in (run, other):
        out.fill_(torch.nan)
        way()
        results.append(out.double())
    return relative_error(results[0], results[1])


def workspace_of(one: Pass, rows: PlainRows) -> FlashInferWorkspace:
    return FlashInferWorkspace(one.page_table, rows.prefill, float_bytes(rows, HEADS, KV_HEADS, HEAD_DIM))


def measure_decode(batch: int, context: int) -> list[Result]:
    passes = random_passes(batch, context)
    for one in passes[1:]:
        one.page_table.copy_(passes[0].page_table)
    out = torch.empty_like(passes[0].q)
    ours = our_decode(passes, out)
    ours_time = graph_time(ours) / len(passes) * 1e6
    workspace = workspace_of(passes[0], PlainRows(batch, batch, batch))
    found = []
    for tensor_cores in (True, False):
        begun = time.monotonic()
        attention = DecodeAttention(shape_of(passes[0]), batch, workspace, tensor_cores=tensor_cores)
        seconds = time.monotonic() - begun
        attention.plan(int32([1] * batch), int32(range(batch)), int32([context] * batch))
        theirs = their_passes(passes, attention, out)
        begun = time.perf_counter()
        for _ in range(20):
            attention.plan(int32([1] * batch), int32(range(batch)), int32([context] * batch))
        planning = (time.perf_counter() - begun) / 20 * 1e6
        found.append(
            {
                "case": f"decode {batch} x {context}, {'tensor' if tensor_cores else 'CUDA'} cores",
                "ours": ours_time,
                "FlashInfer": graph_time(theirs) / len(passes) * 1e6,
                "distance": distance(ours, theirs, out),
                "plan": planning,
                "seconds to build": seconds,
            }
        )
    return found


def measure_prefill(context: int, requests: int) -> Result:
    """A whole prompt; `requests` is how many the plan has room for."""
    passes = random_passes(1, context, prompt=True)[:LAYERS]
    for one in passes[1:]:
        one.page_table.copy_(passes[0].page_table)
    out = torch.empty_like(passes[0].q)
    tiles = passes[0].tiles(PREFILL_COLUMNS)

    def ours() -> None:
        for one in passes:
            prefill_attention(one.q, one.keys, one.values, one.page_table, one.page_size, tiles, out)

    begun = time.monotonic()
    workspace = workspace_of(passes[0], PlainRows(1, context, requests))
    attention = PrefillAttention(shape_of(passes[0]), context, requests, workspace)
    seconds = time.monotonic() - begun
    begun = time.perf_counter()
    for _ in range(5):
        attention.plan(int32([context]), int32([0]), int32([context]))
    planning = (time.perf_counter() - begun) / 5 * 1e6
    theirs = their_passes(passes, attention, out)
    return {
        "case": f"prefill {context}",
        "ours": graph_time(ours) / len(passes) * 1e6,
        "FlashInfer": graph_time(theirs) / len(passes) * 1e6,
        "distance": distance(ours, theirs, out),
        "plan": planning,
        "seconds to build": seconds,
    }


def measure_attention() -> list[Result]:
    decodes = [found for batch in (1, 64, 256) for found in measure_decode(batch, 1000)]
    return [*decodes, measure_prefill(4096, 64)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.check_fast_mode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    results: dict[str, list[Result]] = {}
    every = layers() if {"linear", "compiled"} & set(options.parts) else []
    measures: dict[str, Callable[[], list[Result]]] = {
        "linear": lambda: measure_linear(every),
        "attention": measure_attention,
        "compiled": lambda: measure_compiled(every),
    }
    for part, measure in measures.items():
        if part in options.parts:
            results[part] = measure()
            print(markdown_table(list(results[part][0]), [list(found.values()) for found in results[part]]))
            if options.output:
                write_json(options.output, {"machine": machine() | {"device": torch.cuda.get_device_name()}} | results)
    worst = max((found["distance"] for found in results.get("attention", [])), default=0.0)
    print(f"largest distance between attentions: {worst:.1e}", "" if worst < LIMIT else "TOO FAR")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
