"""The longest wait for a token of running streams while LoRA adapters are loaded and unloaded beside them.

    python -m benchmarks.adapter_stalls --output adapter_stalls.json      # the demo model, on a CPU
    python -m benchmarks.adapter_stalls --model DIR --device cuda:0 --streams 16

Real services, no drafting: each token comes from a pass of its own. Windows in which adapters come and go without a
pause alternate with quiet ones, so that both see the same machine. What streams wait for their next token is measured
where they read. No load holds a pass up where the longest waits of both are alike; on a CPU the median grows, as a
load takes a core from the passes.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.lib.percentiles import spread
from benchmarks.lib.random_adapter import write_random_adapter
from benchmarks.lib.report import gpu_machine, markdown_table, write_json
from benchmarks.lib.repository import DEMO_MODEL
from launcher.supervision.cluster import Cluster
from slipstream import Client

PROMPT = "Sailors once found their way by"
TOKENS = 384
"""Of a stream; another follows it at once."""


class Waits:
    """What streams wait for their next tokens, in seconds, by the window in which the token came."""

    def __init__(self) -> None:
        self.windows: dict[str, list[list[float]]] = {"quiet": [], "loading": []}
        self.window = ""
        self.ended = threading.Event()

    def stream(self, client: Client, number: int) -> None:
        """Read one stream after another until the end; what comes outside of windows is not counted."""
        for turn in itertools.count():
            options: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 1.0, "seed": turn, "ignore_eos": True}
            with client.stream(f"{PROMPT} {number}", **options) as events:
                last, before = 0.0, ""
                for _ in events:
                    now, window = time.perf_counter(), self.window
                    if last and window and window == before:
                        self.windows[window][-1].append(now - last)
                    last, before = now, window
                    if self.ended.is_set():
                        return

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        self.windows[name].append([])
        self.window = name
        try:
            yield
        finally:
            self.window = ""


def measure(address: str, streams: int, seconds: float, turns: int) -> dict[str, Any]:
    """Waits in ms of `turns` windows of each kind, of `seconds` each, and how many loads there were."""
    waits, loads = Waits(), 0
    with Client(address) as client, ThreadPoolExecutor(streams) as pool:
        readers = [pool.submit(waits.stream, client, number) for number in range(streams)]
        try:
            time.sleep(seconds)
            for _ in range(turns):
                with waits.during("quiet"):
                    time.sleep(seconds)
                end = time.perf_counter() + seconds
                with waits.during("loading"):
                    while True:
                        client.load_lora_adapter("passing", "passing")
                        client.unload_lora_adapter("passing")
                        loads += 1
                        if time.perf_counter() > end:
                            break
        finally:
            waits.ended.set()
        for reader in readers:
            reader.result()
    return {"loads": loads} | {
        name: {"tokens": sum(map(len, each)), **spread([*itertools.chain(*each)]), "longest of each": longest(each)}
        for name, each in waits.windows.items()
    }


def longest(windows: Sequence[Sequence[float]]) -> list[float]:
    """In ms, of each window in which a token came."""
    return [round(1000 * max(each), 2) for each in windows if each]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=DEMO_MODEL, help="a model's folder (the demo model)")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:N (cpu)")
    parser.add_argument("--streams", type=int, default=4, help="at a time (4)")
    parser.add_argument("--rank", type=int, default=16, help="of the adapter (16)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a window (2)")
    parser.add_argument("--turns", type=int, default=5, help="windows of each kind (5)")
    parser.add_argument("--output", type=Path, help="a JSON file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        write_random_adapter(Path(folder, "passing"), options.model, seed=1, rank=options.rank, strength=0.1)
        verify = ("--device", options.device, "--lora-dir", folder, "--max-loras", "1", "--max-lora-rank")
        with Cluster(
            options.model, verify_args=(*verify, str(options.rank)), gateway_args=("--allow-lora-updates",)
        ) as cluster:
            found = measure(cluster.gateway_grpc, options.streams, options.seconds, options.turns)
    rows = [[name, *found[name].values()] for name in ("quiet", "loading")]
    print(markdown_table(["window", *found["quiet"]], rows))
    print(f"{found['loads']} loads and unloads; waits in ms", flush=True)
    if options.output:
        write_json(options.output, {"machine": gpu_machine(options.device), "results": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
