"""The GPU engine's small ops at the shapes of an 8B model: each against its torch twin, and its time.

    PYTHONPATH=.:kernels:protos python -m benchmarks.kernels.check_small_ops [--output FILE]

Inputs are random, outputs are poisoned before either runs. The time is the median of CUDA graph replays over the calls
in a graph, so it holds what one call adds to a pass whose data lies in the L2 cache. Ends with 1 where an op is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from benchmarks.kernels.op_time import microseconds
from benchmarks.lib.report import machine, markdown_table, write_json
from slipstream_kernels.ops.gpu.compaction import compact_kv, compact_kv_reference
from slipstream_kernels.ops.gpu.embedding import embed, embed_reference
from slipstream_kernels.ops.gpu.launch import launch
from slipstream_kernels.ops.gpu.rank_sum import rank_sum, rank_sum_reference
from slipstream_kernels.ops.gpu.rms_norm import rms_norm, rms_norm_kernel, rms_norm_reference
from slipstream_kernels.ops.gpu.rotary import rotary_write, rotary_write_reference
from slipstream_kernels.ops.gpu.sampling_table import allocate_sampling_tensors, pack_line
from slipstream_kernels.ops.gpu.state_rows import copy_states, copy_states_reference
from slipstream_kernels.ops.gpu.tree_paths import tree_paths, tree_paths_reference
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH, tree_walk, tree_walk_reference
from slipstream_kernels.ops.rope import Rope

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4096, 32, 32, 8, 128, 128_256
FEATURES = 3 * HIDDEN
DEVICE = torch.device("cuda")
ROWS = (1, 16, 64, 256, 4096)
TREES = ((1, 1), (1, 16), (1, 64), (4, 64), (64, 64), (256, 1))
"""Items and rows of each."""
DEPTH = 8
"""Accepted nodes of which states are copied, at most."""
PAGE_SIZE = 16
TOLERANCE = 1e-3
"""Of norms: kernel and twin round at the same places, so few values differ, by one bfloat16 step."""


@dataclass(frozen=True, slots=True)
class Case:
    """An op on given inputs. `outputs` hold what they must before it runs; `moved` counts bytes read and written."""

    name: str
    size: str
    kernel: Callable[[], None]
    twin: Callable[[], None]
    outputs: tuple[torch.Tensor, ...]
    moved: int = 0


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype, device=DEVICE)


def poison(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.full(shape, torch.nan if dtype.is_floating_point else -9, dtype=dtype, device=DEVICE)


def integers(values: Any) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int32, device=DEVICE)


def embed_case(rows: int, table: torch.Tensor) -> Case:
    tokens = torch.randint(-1, VOCAB, (rows,), dtype=torch.int32, device=DEVICE)
    tokens[0] = -1
    lines, last = integers(range(rows)), torch.randint(0, VOCAB, (rows,), dtype=torch.int32, device=DEVICE)
    outputs = poison(rows, HIDDEN), poison(rows, dtype=torch.int32)
    args = (tokens, lines, last, table, *outputs)
    return Case("embed", f"{rows}", lambda: embed(*args), lambda: embed_reference(*args), outputs, 4 * rows * HIDDEN)


def rms_norm_cases(rows: int) -> Iterator[Case]:
    x, weight, out = normal(rows, HIDDEN), normal(HIDDEN), poison(rows, HIDDEN)

    def twin() -> None:
        rms_norm_reference(x, weight, out, 1e-5)

    def with_warps(warps: int) -> Callable[[], None]:
        fixed = {"HIDDEN": HIDDEN, "TILE": HIDDEN, "CHOSEN": False, "KEPT": True, "CODED": False}
        absent = None, None, None
        return lambda: launch(rms_norm_kernel, (rows,), x, weight, out, *absent, 1e-5, warps=warps, **fixed)

    moved = 4 * rows * HIDDEN
    yield Case("rms_norm", f"{rows}", lambda: rms_norm(x, weight, out, 1e-5), twin, (out,), moved)
    for warps in (1, 4, 8, 16):
        yield Case(f"rms_norm, {warps} warps", f"{rows}", with_warps(warps), twin, (out,), moved)


def rotary_case(rows: int, table: torch.Tensor, *, normalised: bool) -> Case:
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    norms: dict[str, Any] = {"q_norm": normal(HEAD_DIM), "k_norm": normal(HEAD_DIM), "eps": 1e-6} if normalised else {}
    positions = torch.randint(0, len(table), (rows,), dtype=torch.int32, device=DEVICE)
    slots = torch.randperm(2 * rows, device=DEVICE)[:rows].to(torch.int32)
    outputs = (poison(rows, HEADS, HEAD_DIM), *(poison(KV_HEADS, 2 * rows, HEAD_DIM) for _ in range(2)))
    args = (normal(rows, width), positions, slots, table, *outputs)
    return Case(
        "rotary_write, norms" if normalised else "rotary_write",
        f"{rows}",
        lambda: rotary_write(*args, **norms),
        lambda: rotary_write_reference(*args, **norms),
        outputs,
        4 * rows * width,
    )


def rank_sum_case(rows: int) -> Case:
    parts, residual, out = normal(2, rows, HIDDEN, dtype=torch.float32), normal(rows, HIDDEN), poison(rows, HIDDEN)
    args = (parts, residual, out)
    moved = 12 * rows * HIDDEN
    return Case("rank_sum, 2", f"{rows}", lambda: rank_sum(*args), lambda: rank_sum_reference(*args), (out,), moved)


def tree_cases(items: int, rows: int) -> Iterator[Case]:
    """Deep random trees of few token ids, so that paths are accepted; then what follows from their walk."""
    size, total = f"{items} x {rows}", items * rows
    starts = torch.arange(0, total, rows, device=DEVICE).to(torch.int32)
    nodes = torch.arange(rows - 1, device=DEVICE)
    parents = integers([-2] * total).view(items, rows)
    depth = torch.randint(1, 5, (items, rows - 1), device=DEVICE)
    parents[:, 1:] = torch.maximum(nodes - depth, torch.full_like(depth, -1))
    parents = parents.flatten().contiguous()
    paths = poison(total, 64, dtype=torch.int32), poison(total, dtype=torch.int32)
    path_args = (parents, starts.repeat_interleave(rows), *paths)
    yield Case("tree_paths", size, lambda: tree_paths(*path_args), lambda: tree_paths_reference(*path_args), paths)

    deciding = torch.stack([starts, integers([rows] * items), integers(range(items)), integers([40] * items)], dim=1)
    tensors = allocate_sampling_tensors(items, VOCAB, DEVICE)
    tensors.params.copy_(torch.from_numpy(pack_line(presence=1.0)))
    logit_rows, (ids, sampled) = integers(range(total)), torch.randint(0, 3, (2, total), device=DEVICE).to(torch.int32)
    result, last = poison(items, RESULT_WIDTH, dtype=torch.int32), poison(items, dtype=torch.int32)
    walk_args = (sampled, deciding, logit_rows, parents, ids, last, tensors, result)
    outputs = result, last, tensors.output_counts
    yield Case("tree_walk", size, lambda: tree_walk(*walk_args), lambda: tree_walk_reference(*walk_args), outputs)

    tree_walk_reference(*walk_args)
    result = result.clone()
    accepted = int(result[:, 0].sum())
    pages = 8
    page_table = torch.randperm(items * pages, device=DEVICE).view(items, pages).to(torch.int32)
    write_slots = logit_rows + items * pages * PAGE_SIZE
    shape = LAYERS, KV_HEADS, items * pages * PAGE_SIZE + total, HEAD_DIM
    store = normal(*shape), normal(*shape)
    kv_args = (*store, result, deciding, logit_rows, write_slots, page_table, PAGE_SIZE)
    moved = accepted * LAYERS * KV_HEADS * HEAD_DIM * 8
    name = f"compact_kv, {accepted} accepted"
    yield Case(name, size, lambda: compact_kv(*kv_args), lambda: compact_kv_reference(*kv_args), store, moved)

    orders = torch.arange(-1, min(rows, DEPTH + 1) - 1, device=DEVICE)
    item = torch.arange(items, device=DEVICE).repeat_interleave(len(orders))
    places = torch.arange(len(item), device=DEVICE) * FEATURES
    wanted = torch.stack([starts[item].long(), orders.repeat(items), item, places], dim=1)
    packed = poison(len(item) * FEATURES)
    state_args = (normal(total, FEATURES), result, wanted, integers([2, 0, 1]), packed, HIDDEN)
    moved = int((wanted[:, 1] < result[item, 0]).sum()) * FEATURES * 4
    yield Case(
        "copy_states",
        size,
        lambda: copy_states(*state_args),
        lambda: copy_states_reference(*state_args),
        (packed,),
        moved,
    )


def cases() -> Iterator[Case]:
    embeddings = normal(VOCAB, HIDDEN)
    angles = torch.from_numpy(Rope(500_000.0).table(8192, HEAD_DIM)).to(DEVICE)
    for rows in ROWS:
        yield embed_case(rows, embeddings)
        yield from rms_norm_cases(rows)
        yield rotary_case(rows, angles, normalised=False)
        yield rotary_case(rows, angles, normalised=True)
        yield rank_sum_case(rows)
    for items, rows in TREES:
        yield from tree_cases(items, rows)


def difference(case: Case) -> float:
    """The largest relative difference, by norm, of an output from the twin's; 1 where integers or NaN differ."""
    before = [output.clone() for output in case.outputs]
    found: list[list[torch.Tensor]] = []
    for op in (case.kernel, case.twin):
        for output, content in zip(case.outputs, before, strict=True):
            output.copy_(content)
        op()
        found.append([output.clone() for output in case.outputs])
    return max(_distance(ours, theirs) for ours, theirs in zip(*found, strict=True))


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    if not ours.is_floating_point():
        return float(not torch.equal(ours, theirs))
    if not torch.equal(ours.isnan(), theirs.isnan()):
        return 1.0
    ours, theirs = ours.nan_to_num(), theirs.nan_to_num()
    return float((ours - theirs).float().norm() / theirs.float().norm().clamp(min=1e-30))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.check_small_ops",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, help="write the figures here as JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("check_small_ops needs a CUDA device")
        return 2
    torch.manual_seed(0)
    figures: list[dict[str, Any]] = []
    for case in cases():
        error, time = difference(case), microseconds(case.kernel)
        figures.append({
            "op": case.name, "size": case.size, "difference": error, "microseconds": time,
            "gigabytes_per_second": case.moved / time / 1000 if case.moved else None,
        })  # fmt: skip
    columns = ("op", "size", "difference", "microseconds", "gigabytes_per_second")
    print(markdown_table(columns, [[_shown(figure[column]) for column in columns] for figure in figures]))
    wrong = [f"{figure['op']} at {figure['size']}" for figure in figures if not figure["difference"] < TOLERANCE]
    print(f"{len(figures)} cases, wrong: {', '.join(wrong) or 'none'}")
    if options.output is not None:
        facts = machine() | {"gpu": torch.cuda.get_device_name(), "triton": triton.__version__}
        write_json(options.output, {"machine": facts, "wrong": wrong, "figures": figures})
    return 1 if wrong else 0


def _shown(value: object) -> object:
    return f"{value:.2g}" if isinstance(value, float) and 0 < value < 0.01 else value


if __name__ == "__main__":
    sys.exit(main())
