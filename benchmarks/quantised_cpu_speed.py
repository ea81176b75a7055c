"""Speed of quantised weights on a CPU: passes of a few rows through a random model of Llama-3.2-1B's shapes.

    python -m benchmarks.quantised_cpu_speed [--threads 2] [--rounds 3] [--work DIR] [--output FILE]

The model is written in bfloat16, and rounded by `slipstream quantize`. All forms are loaded side by side and take
turns; a figure is the median over rounds. *GB/s* is what the layers' weights have in bytes over the time of a pass: one
row can be no faster than memory gives them. DIR keeps the folders, some 5 GB, for another run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import safe_open
from tqdm import tqdm

from benchmarks.lib.report import machine, markdown_table, write_json
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch

BFLOAT16 = "bf16"
FORMATS = ("fp8", "w4a16")
SHAPE = {"hidden": 2048, "layers": 16, "heads": 32, "kv-heads": 8, "head-dim": 64, "intermediate": 8192, "vocab": 32768}
TINY = {"hidden": 128, "layers": 2, "heads": 4, "kv-heads": 2, "head-dim": 32, "intermediate": 256, "vocab": 8192}
WANTED = {"fp8": 1.5, "w4a16": 2.2}
"""Times bfloat16's tokens a second, of one row, where memory binds."""
ROWS = (1, 4, 16)
CONTEXT = 64
PAGE_SIZE = 128
_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8, "F8_E4M3": 1, "I8": 1, "U8": 1}


def folders(work: Path, shape: dict[str, int]) -> dict[str, Path]:
    """The model in each form, made where it is not there yet."""
    found = {name: work / name for name in (BFLOAT16, *FORMATS)}
    if not found[BFLOAT16].exists():
        flags = [part for name, value in shape.items() for part in (f"--{name}", str(value))]
        _run("benchmarks.inflate", str(found[BFLOAT16]), "--random", "--context", "4096", *flags)
    for name in FORMATS:
        if not found[name].exists():
            _run("launcher", "quantize", str(found[BFLOAT16]), str(found[name]), "--format", name)
    return found


def layer_bytes(folder: Path) -> int:
    """Of all tensors of the layers, as they are stored."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118  # no mapping
                if ".layers." in name:
                    part = file.get_slice(name)
                    size = _ITEM_BYTES[part.get_dtype()]
                    for length in part.get_shape():
                        size *= length
                    total += size
    return total


class Passes:
    """Passes of a model, each of some rows that go on from the same context."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._model = CausalLM.load(folder, threads=threads)
        self._cache = self._model.new_cache(num_pages=1, page_size=PAGE_SIZE, scratch_slots=0)
        self._forward(list(range(1, CONTEXT + 1)), 0)

    def seconds(self, rows: int, repeats: int) -> float:
        """Of one pass, the mean of some."""
        self._forward([7] * rows, CONTEXT)
        begun = time.perf_counter()
        for _ in range(repeats):
            self._forward([7] * rows, CONTEXT)
        return (time.perf_counter() - begun) / repeats

    def _forward(self, tokens: Sequence[int], start: int) -> None:
        self._model.forward(self._cache, RowBatch.chunk(tokens, start, [0], PAGE_SIZE))


def measure(found: dict[str, Path], threads: int, rounds: int, repeats: int) -> list[dict[str, Any]]:
    """A row for each form and number of rows."""
    passes = {name: Passes(folder, threads) for name, folder in found.items()}
    sizes = {name: layer_bytes(folder) for name, folder in found.items()}
    times: dict[tuple[str, int], list[float]] = {}
    for _ in tqdm(range(rounds), desc="rounds"):
        for rows in ROWS:
            for name, model in passes.items():
                times.setdefault((name, rows), []).append(model.seconds(rows, repeats))
    return [
        {
            "weights": name,
            "rows": rows,
            "ms": 1e3 * statistics.median(taken),
            "x bf16": statistics.median(a / b for a, b in zip(times[BFLOAT16, rows], taken, strict=True)),
            "GB of layers": sizes[name] / 1e9,
            "GB/s": sizes[name] / 1e9 / statistics.median(taken),
        }
        for (name, rows), taken in times.items()
    ]


def _run(module: str, *arguments: str) -> None:
    subprocess.run((sys.executable, "-m", module, *arguments), check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; the exit status is 1 where one row is not as much faster as it is to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2, help="compute threads (2)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each form (3)")
    parser.add_argument("--repeats", type=int, default=5, help="passes of a turn (5)")
    parser.add_argument("--tiny", action="store_true", help="a small model, for a trial: nothing is judged")
    parser.add_argument("--work", type=Path, help="folder for the models; default: a temporary one")
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="quantised-") as temporary:
        found = folders(options.work or Path(temporary), TINY if options.tiny else SHAPE)
        rows = measure(found, options.threads, options.rounds, options.repeats)
    print(markdown_table(list(rows[0]), [list(row.values()) for row in rows]))
    if options.output:
        write_json(options.output, {"machine": machine(), "threads": options.threads, "rows": rows})
    one = {row["weights"]: row["x bf16"] for row in rows if row["rows"] == 1}
    return int(not options.tiny and any(one[name] < least for name, least in WANTED.items()))


if __name__ == "__main__":
    sys.exit(main())
