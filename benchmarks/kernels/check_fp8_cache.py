"""A KV cache of 8 bits on a GPU: bits of what is written and read, and speed beside bfloat16.

    python -m benchmarks.kernels.check_fp8_cache [--output FILE] [--part exactness|speed]

Exactness: attention over codes has the bits of attention over the numbers that they stand for, in decode rows, trees,
tiles and prefills; what the kernel that rotates and writes leaves is what `ops.kv_cache.kv_codes.encode` makes of the
bfloat16 rows. Speed: a layer of an 8B model, medians over CUDA graph replays.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.kernels.attention_scenes import Scene, Vectors
from benchmarks.kernels.attention_speed import SpeedRow, decode_speed
from benchmarks.kernels.check_attention import BOUNDS, CASES, TOKENS, Case, device_facts, random_parents
from benchmarks.lib.report import markdown_table, write_json
from slipstream_kernels.ops.gpu.rotary import rotary_write
from slipstream_kernels.ops.kv_cache.kv_codes import Fp8Rows, encode
from slipstream_kernels.ops.rope import Rope

FIXED = ((0.0, 0.0), (0.0371, 2.5))
"""Scales of keys and values; 0: each row's own."""
ROWS = 4096
"""That are written."""
SPEEDS = ((1, 8192, 0), (64, 1000, 0), (64, 8192, 0), (16, 8000, 7))
"""Batch, context, nodes of each tree."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Rows and elements of one case that differ."""

    case: str
    rows: int
    attention: int
    tiles: int
    written: int


def differing(own: torch.Tensor, other: torch.Tensor) -> int:
    """Rows of bfloat16 numbers of which some bits differ."""
    return int((own.view(torch.int16) != other.view(torch.int16)).flatten(1).any(1).sum())


def check_case(case: Case, fixed: tuple[float, float], device: str, bounds: Sequence[int] = BOUNDS) -> Checked:
    """Trees, decode rows and prefills whose contexts end at `bounds`, and rows that are written."""
    rng = np.random.default_rng(case.head_dim + 10 * case.group + case.page_size)
    vectors = Vectors.random(TOKENS, case.kv_heads, case.group, case.head_dim, case.page_size, device, case.form)
    scene = Scene(vectors, case.page_size, seed=case.group)
    for number, context in enumerate(bounds):
        parents = random_parents(rng, number % 3)
        scene.tree(rng.integers(0, TOKENS, context), parents, rng.integers(0, TOKENS, len(parents)))
        scene.decode(rng.integers(0, TOKENS, context))
        scene.prefill(rng.integers(0, TOKENS, context), max(0, context - 6))
    attention = scene.build()
    coded, plain = attention.in_codes(fixed)
    decoding = attention.decode_rows.long()
    return Checked(
        f"{case.head_dim}, {case.kv_heads}, {case.group}, {case.page_size}, scales {fixed}",
        len(scene.sequences),
        differing(*(each.attend(columns=64) for each in (coded, plain))),
        differing(*(each.attend_in_tiles(columns=64)[decoding] for each in (coded, plain))),
        written_otherwise(case, fixed, device),
    )


def written_otherwise(case: Case, fixed: tuple[float, float], device: str, rows: int = ROWS) -> int:
    """Codes and scales that the kernel makes otherwise than the definition."""
    generator = torch.Generator(device).manual_seed(case.head_dim)
    heads, kv_heads, head_dim = case.kv_heads * case.group, case.kv_heads, case.head_dim
    qkv = torch.randn(rows, (heads + 2 * kv_heads) * head_dim, generator=generator, device=device)
    qkv *= torch.exp2(torch.randint(-120, 110, (rows, 1), generator=generator, device=device).float())
    qkv = qkv.bfloat16()
    table = torch.from_numpy(Rope(10_000.0).table(rows, head_dim)).to(device)
    positions = torch.arange(rows, dtype=torch.int32, device=device)
    q_out = torch.empty(rows, heads, head_dim, dtype=torch.bfloat16, device=device)
    shape = kv_heads, rows, head_dim
    plain = [torch.empty(shape, dtype=torch.bfloat16, device=device) for _ in range(2)]
    coded = [
        Fp8Rows(torch.empty(shape, dtype=torch.uint8, device=device), torch.empty(shape[:2], device=device), scale)
        for scale in fixed
    ]
    rotary_write(qkv, positions, positions, table, q_out, *plain)
    rotary_write(qkv, positions, positions, table, q_out, *coded)
    found = 0
    for bare, made in zip(plain, coded, strict=True):
        codes, scales = encode(bare, made.fixed)
        found += int((codes != made.codes).sum()) + int((scales != made.scales).sum())
    return found


def check_all(device: str) -> list[Checked]:
    """Each case with each kind of scales, in processes beside one another: what takes time is to compile kernels."""
    asked = [(case, fixed, device) for case in CASES for fixed in FIXED]
    workers = min(len(asked), len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(check_case, *each) for each in asked]
        for done in as_completed(running):
            print(done.result(), flush=True)
    return [each.result() for each in running]


def measure() -> list[SpeedRow]:
    """Each of SPEEDS in bfloat16 and in codes."""
    return [
        decode_speed(
            f"{name}, batch {batch} at {context}, {nodes} nodes",
            batch,
            context,
            nodes=nodes,
            coded=coded,
            variants=coded and batch > 1,
        )
        for batch, context, nodes in SPEEDS
        for name, coded in (("bfloat16", False), ("fp8", True))
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.check_fp8_cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--part", choices=("exactness", "speed"))
    options = parser.parse_args()
    checked = [] if options.part == "speed" else check_all("cuda")
    speeds = [] if options.part == "exactness" else measure()
    if options.output:
        content = {"machine": device_facts(), "exactness": [asdict(one) for one in checked]}
        write_json(options.output, content | {"speed": [asdict(one) for one in speeds]})
    good = not any(one.attention or one.tiles or one.written for one in checked)
    if speeds:
        print(markdown_table(SpeedRow.HEADER, [one.cells() for one in speeds]))
    if checked:
        cells = [list(asdict(one).values()) for one in checked]
        print(markdown_table(("head_dim, kv, group, page", "rows", "attention", "tiles", "written"), cells))
        print("all bits equal" if good else "NOT EXACT")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
