"""Attention kernels on a GPU: equal bits on every path, error against float64, and speed at the shapes of an 8B model.

    python -m benchmarks.kernels.check_attention [--output FILE] [--part exactness|speed]

Exactness: random trees over contexts around every bound of blocks and splits; each node is computed in its tree, as a
decode row of its own, as the last row of a prefill and in a tile of its tree, with products of all widths, and all
must agree bit for bit.
Speed: medians over CUDA graph replays that walk through enough layers of KV to find none of it in the L2 cache.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.kernels.attention_scenes import Scene, Vectors, relative_error
from benchmarks.kernels.attention_speed import SpeedRow, measure_speed
from benchmarks.lib.report import markdown_table, write_json
from slipstream_kernels.ops.attention_form import FULL, AttentionForm

BOUNDS = (1, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 4095, 4096, 4097, 16383, 32768)
RANDOM_CONTEXTS = 4
DEVICE = "cuda"
TOKENS = 4096
CHUNK = 6
"""Rows of a prefill in front of the row compared."""
LIMIT = 4e-3
"""Relative error by norm that bfloat16 weights and outputs may leave."""


@dataclass(frozen=True, slots=True)
class Case:
    head_dim: int
    kv_heads: int
    group: int
    page_size: int
    widths: tuple[int, ...] = (64, 128)
    """Columns with which prefixes are read."""
    tile_widths: tuple[int, ...] = (128, 64)
    """Columns with which prompts are prefilled."""
    form: AttentionForm = FULL


CASES = (
    Case(128, 8, 4, 16),
    Case(128, 1, 3, 1),
    Case(128, 2, 1, 64),
    Case(128, 2, 8, 16),
    Case(64, 2, 4, 1),
    Case(64, 1, 3, 16),
    Case(64, 3, 1, 16),
    Case(64, 2, 8, 64),
    Case(128, 2, 4, 16, form=AttentionForm(window=1000)),
    Case(128, 1, 8, 16, form=AttentionForm(window=64, cap=5.0)),
    Case(64, 2, 3, 1, form=AttentionForm(window=130, scale=0.2)),
    Case(64, 2, 4, 64, form=AttentionForm(scale=0.1, cap=2.0)),
    Case(64, 1, 8, 16, form=AttentionForm(window=128, sinks=True)),
    Case(256, 2, 2, 16, widths=(64,), tile_widths=(64,)),
    Case(256, 1, 4, 16, widths=(64,), tile_widths=(64,), form=AttentionForm(window=500, cap=50.0)),
)


@dataclass(frozen=True, slots=True)
class Exactness:
    """What one case gave; mismatches count rows."""

    case: Case
    rows: int
    width_mismatches: int
    decode_mismatches: int
    prefill_mismatches: int
    tile_mismatches: int
    worst_error: float
    seconds: float


def random_parents(rng: np.random.Generator, kind: int) -> list[int]:
    """Parents of a chain of 63 nodes, a bushy tree of 63, or a small random one."""
    if kind == 0:
        return list(range(-1, 62))
    nodes = 63 if kind == 1 else int(rng.integers(1, 63))
    return [
        int(rng.integers(-1, node)) if kind == 1 else int(rng.integers(max(-1, node - 4), node))
        for node in range(nodes)
    ]


def check_case(case: Case) -> Exactness:
    """Build all three layouts of every node in one pass and compare."""
    start = time.monotonic()
    rng = np.random.default_rng(case.head_dim + 10 * case.group + case.page_size)
    vectors = Vectors.random(TOKENS, case.kv_heads, case.group, case.head_dim, case.page_size, DEVICE, case.form)
    scene = Scene(vectors, case.page_size, seed=case.group)
    nodes: list[int] = []
    for number, context in enumerate([*BOUNDS, *rng.integers(1, 5000, RANDOM_CONTEXTS).tolist()]):
        parents = random_parents(rng, number % 3)
        root = scene.tree(rng.integers(0, TOKENS, context), parents, rng.integers(0, TOKENS, len(parents)))
        nodes += range(root, root + 1 + len(parents))
    alone, prefilled = [], []
    for row in nodes:
        sequence, line = scene.sequences[row], scene.line_of(row)
        alone.append(scene.decode(sequence, line))
        first = max(0, len(sequence) - 1 - int(rng.integers(0, CHUNK)))
        prefilled.append(scene.prefill(sequence, first, line) + len(sequence) - 1 - first)
    attention = scene.build(padding=3)
    runs = [attention.attend(columns=width, prefill_columns=case.tile_widths[0], padding=5) for width in case.widths]
    runs += [
        attention.attend(columns=case.widths[0], prefill_columns=width, padding=5) for width in case.tile_widths[1:]
    ]
    out = runs[0]

    def mismatches(own: torch.Tensor, other: torch.Tensor) -> int:
        differ = own.view(torch.int16) != other.view(torch.int16)
        return int((differ.flatten(1).any(1) | own.flatten(1).isnan().any(1)).sum())

    rows = len(scene.sequences)
    decoding = attention.decode_rows[attention.decode_rows >= 0].long()
    tiles = [attention.attend_in_tiles(columns=width, padding=5) for width in case.widths]
    sampled = range(0, len(nodes), 3)
    return Exactness(
        case,
        len(nodes),
        sum(mismatches(out[:rows], run[:rows]) for run in runs[1:]),
        mismatches(out[nodes], out[alone]),
        mismatches(out[nodes], out[prefilled]),
        sum(mismatches(out[decoding], run[decoding]) for run in tiles),
        max(relative_error(out[nodes[i]], vectors.expected(scene.sequences[nodes[i]])) for i in sampled),
        time.monotonic() - start,
    )


def exactness() -> list[Exactness]:
    """All cases side by side, a process each: most of their time is compilation."""
    with ProcessPoolExecutor(len(CASES), mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(check_case, CASES))


def device_facts() -> dict[str, Any]:
    import triton

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit,
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.check_attention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path)
    parser.add_argument("--part", choices=("exactness", "speed"))
    options = parser.parse_args()
    checked = [] if options.part == "speed" else exactness()
    speeds: list[SpeedRow] = [] if options.part == "exactness" else measure_speed()
    if options.output:
        content = {"machine": device_facts(), "exactness": [asdict(one) for one in checked]}
        write_json(options.output, content | {"speed": [asdict(one) for one in speeds]})
    if speeds:
        print(json.dumps([one.variants for one in speeds if one.variants]))
        print(markdown_table(SpeedRow.HEADER, [one.cells() for one in speeds]))
    good = all(
        not (one.width_mismatches or one.decode_mismatches or one.prefill_mismatches or one.tile_mismatches)
        and one.worst_error < LIMIT
        for one in checked
    )
    if checked:
        header = (
            "head_dim, kv, group, page",
            "window, scale, cap",
            "rows",
            "other widths",
            "alone",
            "prefilled",
            "tiles",
            "worst error",
            "seconds",
        )
        print(markdown_table(header, [_cells(one) for one in checked]))
        print(f"{sum(one.rows for one in checked)} nodes on four paths:", "all bits equal" if good else "NOT EXACT")
    return 0 if good else 1


def _cells(one: Exactness) -> list[object]:
    case = one.case
    return [
        f"{case.head_dim}, {case.kv_heads}, {case.group}, {case.page_size}",
        "" if case.form == FULL else f"{case.form.reach}, {case.form.scale:g}, {case.form.cap:g}",
        one.rows,
        one.width_mismatches,
        one.decode_mismatches,
        one.prefill_mismatches,
        one.tile_mismatches,
        f"{one.worst_error:.1e}",
        one.seconds,
    ]


if __name__ == "__main__":
    sys.exit(main())
