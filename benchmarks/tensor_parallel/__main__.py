"""Tensor parallelism on the GPUs of one host: exactness within a size, speed beside one GPU.

    python -m benchmarks.tensor_parallel --prompts spec_bench_question.jsonl [--sizes 2,1] [--output FILE]

All models have Llama-3.1-8B's shapes unless flags say otherwise; rounded to --format, or at --shape llama-4-scout, they
are random alone. For each size, one after the other:

    plain, verify  Time of a step through the verify loop at context 1k: plain at batch 1 and 64, and one request with a
                   tree of 16 and 64 rows. Random weights.
    exactness      For sizes above 1: random weights, then the demo model inflated. Token ids and a hash of every row of
                   logits against a plain run of the same size, for plain decoding, random trees and an oracle's trees,
                   at temperatures 0 and 0.8, in batches of 7 and alone, with small chunks and whole prompts, computed
                   at once and continued from the cache.

Sizes are also compared with one another, token for token; they may differ (docs/exactness.md). Each size has processes
of its own, which prepare at the same time and measure in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.inflate.shape import ShapeError
from benchmarks.inflate.shape_arguments import add_format_arguments, add_shape_arguments
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from benchmarks.local_engine.figures import Figures, side_by_side
from slipstream_kernels.models.checkpoint.model_config import CheckpointError

READY, RESULT = "ready", "result "
LAST = "failures"
"""The last result of a size."""
COMPARED = {"plain": ("context", "batch"), "verify": ("batch", "rows")}
END_SECONDS = 15.0


class SizeProcess:
    """The process that measures one size. It starts to prepare at once."""

    def __init__(self, size: int, arguments: Sequence[str]) -> None:
        self.size = size
        command = [sys.executable, "-m", "benchmarks.tensor_parallel", *arguments, "--only", str(size)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self) -> tuple[dict[str, Any], list[str]]:
        """Wait until it is ready and let it measure; returns its results and what failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        results: dict[str, Any] = {}
        failed = []
        for line in self._process.stdout:
            if line.startswith(RESULT):
                name, content = json.loads(line.removeprefix(RESULT))
                results[name] = content
                if name == LAST:
                    break
            elif line.strip() == READY:
                print(f"size {self.size} measures", flush=True)
                self._process.stdin.write("\n")
                self._process.stdin.flush()
            else:
                print(line, end="", flush=True)
        try:
            status = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            failed.append(f"size {self.size}: the process did not end by itself")
            status = 0
        if status:
            failed.append(f"size {self.size}: the process ended with status {status}")
        return results, [*failed, *results.pop(LAST, ["nothing was compared"])]

    def kill(self) -> None:
        """End it, and with it the ranks that it has started."""
        self._process.kill()
        self._process.communicate()


def measure_here(options: argparse.Namespace) -> None:
    """One size in this process, in step with `SizeProcess.measure`."""
    from benchmarks.tensor_parallel.ranks import RankedModel
    from benchmarks.tensor_parallel.size import config_of, measure_size
    from slipstream_kernels.models.rank_error import RankError

    def report(name: str, content: Any) -> None:
        print(RESULT + json.dumps((name, content)), flush=True)

    try:
        target = RankedModel(options, options.only, config_of(options))
    except (CheckpointError, ShapeError, RankError, ValueError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    print(f"\n{READY}", flush=True)
    sys.stdin.readline()
    report("memory", str(target.model.memory))
    failed = measure_size(options, options.only, target, report)
    target.close()
    report(LAST, failed)


def summary(found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Times of all sizes side by side, and how many answers are equal between the first size and each other one."""
    first = next(iter(found))
    result: dict[str, Any] = {}
    for section, keys in COMPARED.items():
        tables: dict[str, list[Figures]] = {f"size {size}": each[section] for size, each in found.items()}
        result[section] = side_by_side(tables, keys, "step ms")
    for name in [name for name in found[first] if name.endswith(" tokens")]:
        for size in list(found)[1:]:
            pairs = list(zip(found[first][name], found[size][name], strict=True))
            result[f"{name}, size {first} and size {size}"] = {
                "answers": len(pairs),
                "equal": sum(a == b for a, b in pairs),
            }
    return result


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    title = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tensor_parallel", description=title)
    parser.add_argument("--prompts", type=Path, required=True, help="prompt file, as benchmarks.lib.prompts reads")
    parser.add_argument("--sizes", type=_numbers, default=[2, 1], help="processes that share a model (2,1)")
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="model to inflate (the demo model)")
    parser.add_argument("--device", default="cuda", help="first GPU, or cpu: the ops' twins in torch (cuda)")
    parser.add_argument("--batch", type=int, default=64, help="requests of the large plain batch (64)")
    parser.add_argument("--rows", type=_numbers, default=[16, 64], help="of timed trees, root included (16,64)")
    parser.add_argument("--measured-context", type=int, default=1024, help="context of timed steps (1024)")
    parser.add_argument("--steps", type=int, default=50, help="steps a figure is the median of (50)")
    parser.add_argument("--cases", type=int, default=10, help="prompts whose answers are compared (10)")
    parser.add_argument("--tokens", type=int, default=24, help="new tokens of each answer (24)")
    parser.add_argument("--prefill-chunk", type=int, default=512, help="prompt rows of a step (512)")
    parser.add_argument("--chunks", type=_numbers, default=[64, 0], help="prompt rows of a step in turn, 0: all (64,0)")
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    parser.add_argument("--only", type=int, help=argparse.SUPPRESS)
    add_shape_arguments(parser)
    add_format_arguments(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit status is 1 where answers of one size differ from one another, or a size could not run."""
    given = sys.argv[1:] if arguments is None else arguments
    options = parse(given)
    if options.only:
        measure_here(options)
        sys.stdout.flush()
        return 0
    processes = [SizeProcess(size, given) for size in options.sizes]
    machine = gpu_machine(options.device) | {"nccl": {k: v for k, v in os.environ.items() if k.startswith("NCCL_")}}
    found: dict[int, dict[str, Any]] = {}
    failed: list[str] = []
    try:
        for process in processes:
            found[process.size], problems = process.measure()
            failed += problems
            if options.output:
                write_json(options.output, {"machine": machine, "sizes": found, "failures": failed})
    finally:
        for process in processes:
            process.kill()
    if all(section in each for each in found.values() for section in COMPARED):
        compared = summary(found)
        for name, content in compared.items():
            table = content if isinstance(content, list) else [content]
            print(f"\n{name}\n\n{markdown_table(list(table[0]), [list(row.values()) for row in table])}")
        if options.output:
            content = {"machine": machine, "compared": compared, "sizes": found, "failures": failed}
            write_json(options.output, content)
    print("\n" + ("\n".join(failed) or "exact: within each size every answer is the plain run's, bit for bit"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
