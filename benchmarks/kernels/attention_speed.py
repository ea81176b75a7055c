"""Time of the attention kernels at the shapes of an 8B model, a layer at a time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import torch

from benchmarks.kernels.attention_scenes import Pass
from slipstream_kernels.ops.attention_form import FULL
from slipstream_kernels.ops.gpu.attention_state import AttentionPartials
from slipstream_kernels.ops.gpu.prefill_attention import PREFILL_COLUMNS, prefill_attention
from slipstream_kernels.ops.gpu.prefill_attention import STAGES as PREFILL_STAGES
from slipstream_kernels.ops.gpu.prefix_attention import PrefixPrograms, prefix_attention
from slipstream_kernels.ops.gpu.tail_attention import tail_attention
from slipstream_kernels.ops.gpu.tree_attention import STAGES as TREE_STAGES
from slipstream_kernels.ops.gpu.tree_attention import tree_attention
from slipstream_kernels.ops.kv_cache.kv_codes import KVRows
from slipstream_kernels.token_tree import MAX_ROWS

DEVICE = "cuda"
HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 32, 8, 128, 16
CACHE_BYTES = 400 << 20
"""KV that a graph reads before it comes to the same bytes again: several times any L2 cache."""
REPLAYS = 15
VARIANTS = (
    *((64, PrefixPrograms(*each, None)) for each in ((132, 5), (264, 5), (264, 3), (528, 3))),
    *((128, PrefixPrograms(*each, None)) for each in ((132, 3), (264, 3), (132, 5))),
)
"""Columns and programs of `prefix_attention` that are tried."""
CODED_VARIANTS = tuple(
    (64, PrefixPrograms(*each))
    for each in ((264, 5, None), (264, 4, None), (396, 4, 168), (396, 5, 168), (528, 4, 128), (396, 2, 168))
)
"""The same for codes."""


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """Times of one layer in microseconds."""

    HEADER: ClassVar[Sequence[str]] = ("case", "us", "prefix", "tail", "as tiles", "TB/s", "TFLOP/s", "torch TFLOP/s")

    name: str
    both: float
    prefix: float | None = None
    tail: float | None = None
    tiles: float | None = None
    """Decode rows served by `prefill_attention`, a tile each, and trees by `tree_attention`"""
    bandwidth: float | None = None
    """TB/s of keys and values"""
    rate: float | None = None
    """TFLOP/s of the products that causality leaves"""
    torch_rate: float | None = None
    """The same for torch's scaled_dot_product_attention"""
    variants: dict[str, float] = field(default_factory=dict)

    def cells(self) -> list[object]:
        return [self.name, self.both, self.prefix, self.tail, self.tiles, self.bandwidth, self.rate, self.torch_rate]


def graph_time(run: Callable[[], None]) -> float:
    """Median seconds of `run` as a CUDA graph."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(REPLAYS + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return float(statistics.median(times[3:]))


def random_passes(
    batch: int, context: int, *, nodes: int = 0, width: int = 8, prompt: bool = False, uneven: bool = False
) -> list[Pass]:
    """A pass for each of as many layers as it takes to overrun the cache: trees of `nodes`, or whole prompts.

    A tree has `width` paths of one length. `uneven` contexts lie between half and one and a half of `context`.
    """
    contexts = np.linspace(0.5, 1.5, batch) * context if uneven else np.full(batch, context)
    lengths = np.random.default_rng(0).permutation(contexts.astype(np.int32)).tolist()
    most = max(lengths)
    pages = -(-most // PAGE_SIZE)
    slots = batch * pages * PAGE_SIZE + nodes + 1
    layers = max(1, min(32, CACHE_BYTES // (2 * KV_HEADS * slots * HEAD_DIM * 2)))
    cache = torch.randn(layers, 2, KV_HEADS, slots, HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
    rows = batch * context if prompt else batch * (1 + nodes)
    q = torch.randn(rows, HEADS, HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
    depth = [node // width + 1 for node in range(nodes)]
    paths = np.zeros((rows, MAX_ROWS), np.int32)
    for root in range(0, rows, 1 + nodes):
        for node in range(nodes):
            paths[root + 1 + node, : depth[node]] = range(root + 1 + node % width, root + 2 + node, width)

    def ints(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=DEVICE)

    per_request = rows // batch
    return [
        Pass(
            q, layer[0], layer[1],
            torch.randperm(batch * pages, device=DEVICE).int().view(batch, pages), PAGE_SIZE,
            lines=ints([row // per_request for row in range(rows)]),
            prefix_lengths=ints([lengths[row // per_request] for row in range(rows)]),
            paths=torch.from_numpy(paths).to(DEVICE),
            depths=ints([0, *depth] * batch if nodes else [0] * rows),
            write_slots=ints([slots - 1 - nodes, *range(slots - nodes, slots)] * batch if nodes else [0] * rows),
            decode_rows=ints(range(0 if prompt else rows)),
            spans=() if prompt else tuple((i * per_request, per_request, i, lengths[i]) for i in range(batch)),
            chunks=tuple((i * context, context, i, 0) for i in range(batch)) if prompt else (),
            form=FULL,
        )
        for layer in cache
    ]  # fmt: skip


def decode_speed(
    name: str,
    batch: int,
    context: int,
    *,
    nodes: int = 0,
    width: int = 8,
    uneven: bool = False,
    variants: bool = False,
    coded: bool = False,
) -> SpeedRow:
    """Both kernels of a decode step or a tree, together and each alone, and the one that does without states.

    coded: keys and values are held in 8 bits.
    """
    passes = random_passes(batch, context, nodes=nodes, width=width, uneven=uneven)
    if coded:
        passes = [one.in_codes()[0] for one in passes]
    columns = 64
    out = torch.empty_like(passes[0].q)
    partials = passes[0].partials()
    cuts = {width: passes[0].segments(width) for width in (64, 128)}

    def prefix(width: int = columns, programs: PrefixPrograms | None = None) -> None:
        for one in passes:
            prefix_attention(*_kv(one), *cuts[width], partials, columns=width, programs=programs)

    def tail() -> None:
        for one in passes:
            _tail(one, partials, out)

    def both() -> None:
        for one in passes:
            prefix_attention(*_kv(one), *cuts[columns], partials, columns=columns)
            _tail(one, partials, out)

    single = torch.tensor([(i, 1, i, context - 1) for i in range(batch)], dtype=torch.int32, device=DEVICE)
    leaves = passes[0].leaves(columns)

    def as_tiles(stages: int = TREE_STAGES) -> None:
        for one in passes:
            if nodes:
                tree_attention(
                    *_kv(one), cuts[columns][0], one.paths, one.depths, leaves, one.write_slots, out,
                    columns=columns, stages=stages,
                )  # fmt: skip
            else:
                prefill_attention(*_kv(one), single, out)

    layer = 1e6 / len(passes)
    tried = {
        f"{name}, {width} columns, {programs}": round(graph_time(partial(prefix, width, programs)) * layer, 1)
        for width, programs in ((CODED_VARIANTS if coded else VARIANTS) if variants else ())
    }
    tried |= {
        f"{name}, tiles, stages {stages}": round(graph_time(partial(as_tiles, stages)) * layer, 1)
        for stages in ((3, 4, 7) if variants and nodes else ())
    }
    seconds = graph_time(both) / len(passes)
    row_bytes = HEAD_DIM + 4 if coded else 2 * HEAD_DIM
    moved = 2 * sum(length for *_, length in passes[0].spans) * KV_HEADS * row_bytes
    return SpeedRow(
        name,
        seconds * 1e6,
        graph_time(prefix) * layer,
        graph_time(tail) * layer,
        graph_time(as_tiles) * layer,
        moved / seconds / 1e12,
        variants=tried,
    )


def prefill_speed(name: str, context: int) -> SpeedRow:
    """A whole prompt."""
    passes = random_passes(1, context, prompt=True)[:4]
    out = torch.empty_like(passes[0].q)
    tiles = {columns: passes[0].tiles(columns) for columns in (64, 128)}

    def run(stages: int = PREFILL_STAGES, columns: int = PREFILL_COLUMNS) -> None:
        for one in passes:
            prefill_attention(*_kv(one), tiles[columns], out, stages=stages, columns=columns)

    def library() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    work = 2 * HEADS * HEAD_DIM * context * (context + 1)
    layer = 1e6 / len(passes)
    tried = {
        f"{name}, {columns} columns, stages {stages}": round(graph_time(partial(run, stages, columns)) * layer, 1)
        for columns, stages in ((64, 3), (64, 5), (128, 2), (128, 3), (128, 5), (128, 7))
    }
    q = passes[0].q.transpose(0, 1)[None]
    k, v = (tensor[None, :, :context] for tensor in passes[0].bfloat16)
    seconds = graph_time(run) / len(passes)
    rates = work / seconds / 1e12, work / graph_time(library) / 1e12
    return SpeedRow(name, seconds * 1e6, rate=rates[0], torch_rate=rates[1], variants=tried)


def measure_speed() -> list[SpeedRow]:
    return [
        decode_speed("1 row at 1k", 1, 1000, variants=True),
        decode_speed("1 row at 8k", 1, 8192, variants=True),
        decode_speed("1 row at 32k", 1, 32768, variants=True),
        decode_speed("1 row at 128k", 1, 131_000),
        decode_speed("64 rows at 1k", 64, 1000, variants=True),
        decode_speed("256 rows at 1k", 256, 1000),
        decode_speed("tree of 16 at 1k", 1, 1000, nodes=15, variants=True),
        decode_speed("tree of 64 at 1k", 1, 1000, nodes=63, variants=True),
        decode_speed("4 trees of 16 at 1k", 4, 1000, nodes=15),
        decode_speed("tree of 64 at 32k", 1, 32000, nodes=63),
        decode_speed("8 trees of 8 at 1k", 8, 1000, nodes=7, width=3),
        decode_speed("12 trees of 8 at 1k", 12, 1000, nodes=7, width=3),
        decode_speed("16 trees of 8 at 1k", 16, 1000, nodes=7, width=3),
        decode_speed("16 trees of 8 at 500 to 1500", 16, 1000, nodes=7, width=3, uneven=True),
        decode_speed("16 chains of 6 at 1k", 16, 1300, nodes=5, width=1),
        decode_speed("16 trees of 8 at 8k", 16, 8000, nodes=7, width=3),
        decode_speed("24 trees of 8 at 1k", 24, 1000, nodes=7, width=3),
        decode_speed("32 trees of 8 at 500 to 1500", 32, 1000, nodes=7, width=3, uneven=True),
        decode_speed("64 chains of 6 at 1.3k", 64, 1300, nodes=5, width=1, variants=True),
        decode_speed("64 trees of 4 at 1k", 64, 1000, nodes=3, width=2),
        decode_speed("64 trees of 4 at 500 to 1500", 64, 1000, nodes=3, width=2, uneven=True),
        decode_speed("64 trees of 8 at 1k", 64, 1000, nodes=7, width=3),
        prefill_speed("prefill of 4k", 4096),
        prefill_speed("prefill of 16k", 16384),
    ]


def _kv(one: Pass) -> tuple[torch.Tensor, KVRows, KVRows, torch.Tensor, int]:
    return one.q, one.keys, one.values, one.page_table, one.page_size


def _tail(one: Pass, partials: AttentionPartials, out: torch.Tensor) -> None:
    tail_attention(
        *_kv(one), one.lines, one.prefix_lengths, one.paths, one.depths, one.write_slots, one.decode_rows, partials, out
    )  # fmt: skip
