"""A KV cache of 8 bits on a GPU: bits of what is written and read, and speed beside bfloat16.

    python -m benchmarks.kernels.check_fp8_cache [--output FILE] [--part exactness|speed]

Exactness: a node of a tree has one result over codes in its tree, in its tree's tile, as a decode row and as the last
row of a prefill, and so has a row of a chunk of 128, with products of all widths; what the kernel that rotates and
writes leaves is what `ops.kv_cache.kv_codes.encode` makes of the bfloat16 rows. Where rows differ, the states of splits
say what does: peaks (products of queries and keys), weights, or sums of values. Speed: a layer of an 8B model, medians
over CUDA graph replays.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from benchmarks.kernels.attention_scenes import Pass, Scene, Vectors, relative_error
from benchmarks.kernels.attention_speed import SpeedRow, decode_speed, prefill_speed
from benchmarks.kernels.check_attention import (
    CASES,
    LIMIT,
    TOKENS,
    Case,
    alone_and_prefilled,
    device_facts,
    trees_below,
)
from benchmarks.lib.report import markdown_table, write_json
from slipstream_kernels.ops.gpu.prefix_attention import prefix_attention
from slipstream_kernels.ops.gpu.rotary import rotary_write
from slipstream_kernels.ops.kv_cache.kv_codes import Fp8Rows, encode
from slipstream_kernels.ops.rope import Rope

BOUNDS = (1, 63, 64, 65, 128, 129, 1023, 1025, 4096, 4097, 16383)
"""Contexts: at bounds of blocks and splits, and beside them."""
CHUNK, COMPARED = 128, 8
"""Rows of a prompt that are prefilled at once, and how many of them are decoded alone too."""
FIXED = ((0.0, 0.0), (0.0371, 2.5))
"""Scales of keys and values; 0: each row's own."""
ROWS = 4096
"""That are written."""
_COLUMNS = 64
_WIDEST_HEAD = 256
SPEEDS = ((1, 8192, 0), (64, 1000, 0), (64, 8192, 0), (16, 8000, 7))
"""Batch, context, nodes of each tree."""
PROMPT = 4096
"""Tokens of the prompt that is timed."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Rows and elements of one case that differ."""

    case: str
    rows: int
    widths: int
    """Between products of other widths"""
    alone: int
    """Between a node and its token decoded alone"""
    prefilled: int
    """Between a node and its token prefilled"""
    tiles: int
    """Between tiles and splits"""
    peaks: int
    """Numbers of states that differ between products of other widths: their largest scores"""
    weights: int
    """Their sums of weights"""
    sums: int
    """Their sums of values"""
    written: int
    error: float
    """From attention over the numbers that codes stand for, held in bfloat16: relative, by norm"""

    @property
    def good(self) -> bool:
        """Whether all bits are equal, and nothing is far from what it should be."""
        rows = self.widths, self.alone, self.prefilled, self.tiles
        return not any((*rows, self.peaks, self.weights, self.sums, self.written)) and self.error < LIMIT


def differing(own: torch.Tensor, other: torch.Tensor) -> int:
    """Rows of bfloat16 numbers of which some bits differ, or that are no numbers."""
    unequal = own.view(torch.int16) != other.view(torch.int16)
    return int((unequal.flatten(1).any(1) | own.flatten(1).isnan().any(1)).sum())


def widths_of(case: Case) -> list[int]:
    """Columns of products besides 64: as few as hold a row, and those that heads of any size have room for."""
    narrow = () if case.head_dim >= _WIDEST_HEAD else (16, 32)
    return [width for width in (*narrow, *case.widths) if case.group <= width != _COLUMNS]


def chunks_of(scene: Scene, contexts: Sequence[int], rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """The end of a prompt of each length in one chunk: some of its rows, and the same tokens as decode rows."""
    chunked, alone = [], []
    for context in contexts:
        sequence = rng.integers(0, TOKENS, context)
        first = max(0, context - CHUNK)
        row = scene.prefill(sequence, first)
        for place in rng.integers(0, context - first, COMPARED).tolist():
            chunked.append(row + place)
            alone.append(scene.decode(sequence[: first + place + 1], scene.line_of(row)))
    return chunked, alone


def states(one: Pass, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Peaks, weights and sums of all splits; zeros where none is written."""
    partials = one.partials()
    kv = one.q, one.keys, one.values, one.page_table, one.page_size
    prefix_attention(*kv, *one.segments(columns), partials, columns=columns, form=one.form, depths=one.depths)
    return partials.m.nan_to_num(), partials.l.nan_to_num(), partials.o.nan_to_num()


def check_case(case: Case, fixed: tuple[float, float], device: str, bounds: Sequence[int] = BOUNDS) -> Checked:
    """Trees below contexts that end at `bounds`, their rows in all layouts, chunks, and rows that are written."""
    rng = np.random.default_rng(case.head_dim + 10 * case.group + case.page_size)
    vectors = Vectors.random(TOKENS, case.kv_heads, case.group, case.head_dim, case.page_size, device, case.form)
    scene = Scene(vectors, case.page_size, seed=case.group)
    nodes = trees_below(scene, bounds, rng)
    alone, prefilled = alone_and_prefilled(scene, nodes, rng)
    chunked, chunked_alone = chunks_of(scene, bounds, rng)
    coded, plain = scene.build().in_codes(fixed)
    out = coded.attend(columns=_COLUMNS)
    decoding = coded.decode_rows.long()
    others = [coded.attend(columns=width, prefill_columns=width) for width in widths_of(case)]
    expected = plain.attend(columns=_COLUMNS)
    own, differ = states(coded, _COLUMNS), np.zeros(3, np.int64)
    for width in widths_of(case):
        differ += [int((mine != other).sum()) for mine, other in zip(own, states(coded, width), strict=True)]
    peaks, weights, sums = differ.tolist()
    return Checked(
        f"{case.head_dim}, {case.kv_heads}, {case.group}, {case.page_size}, scales {fixed}",
        len(nodes) + len(chunked),
        sum(differing(out, other) for other in others),
        differing(out[nodes], out[alone]),
        differing(out[nodes], out[prefilled]) + differing(out[chunked], out[chunked_alone]),
        differing(out[decoding], coded.attend_in_tiles(columns=_COLUMNS)[decoding]),
        peaks,
        weights,
        sums,
        written_otherwise(case, fixed, device),
        relative_error(out, expected.double()),
    )


def check_scales(case: Case) -> list[Checked]:
    """A case with each of FIXED."""
    return [check_case(case, fixed, "cuda") for fixed in FIXED]


def exactness() -> list[Checked]:
    """All cases side by side, a process each: most of their time is compilation."""
    with ProcessPoolExecutor(len(CASES), mp_context=multiprocessing.get_context("spawn")) as pool:
        return [one for checked in pool.map(check_scales, CASES) for one in checked]


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


def measure() -> list[SpeedRow]:
    """Each of SPEEDS, and a prompt, in bfloat16 and in codes."""
    forms = ("bfloat16", False), ("fp8", True)
    decoded = [
        decode_speed(
            f"{name}, batch {batch} at {context}, {nodes} nodes",
            batch,
            context,
            nodes=nodes,
            coded=coded,
            variants=coded,
        )
        for batch, context, nodes in SPEEDS
        for name, coded in forms
    ]
    return decoded + [prefill_speed(f"{name}, prompt of {PROMPT}", PROMPT, (), coded) for name, coded in forms]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.check_fp8_cache",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--part", choices=("exactness", "speed"))
    options = parser.parse_args()
    checked = [] if options.part == "speed" else exactness()
    speeds = [] if options.part == "exactness" else measure()
    if options.output:
        content = {"machine": device_facts(), "exactness": [asdict(one) for one in checked]}
        write_json(options.output, content | {"speed": [asdict(one) for one in speeds]})
    good = all(one.good for one in checked)
    if speeds:
        print(json.dumps([one.variants for one in speeds if one.variants], indent=0))
        print(markdown_table(SpeedRow.HEADER, [one.cells() for one in speeds]))
    if checked:
        cells = [list(asdict(one).values()) for one in checked]
        header = (
            "head_dim, kv, group, page",
            "nodes",
            "other widths",
            "alone",
            "prefilled",
            "tiles",
            "peaks",
            "weights",
            "sums",
            "written",
            "error",
        )
        print(markdown_table(header, cells))
        print("all bits equal" if good else "NOT EXACT")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
