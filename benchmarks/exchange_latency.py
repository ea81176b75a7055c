"""Round trip of a step's commits and trees, by each transport on the CPU.

By `inproc` the proposer runs in this process, which is what the boundary's cost is measured against; by the others a
draft service runs as its own process. This one plays the verify loop on the draft link, with no model in between: the
time from `commit` to the last tree in `collect`, the proposer's own work included. Run with --pause-ms to leave the
time of a verify step between rounds, as in serving, where both ends have gone to sleep meanwhile.

    python -m benchmarks.exchange_latency --requests 1,16 --pause-ms 0,4
    python -m benchmarks.exchange_latency --proposer draft-model:demo_models/slipstream-demo-draft
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from benchmarks.lib.link_server import link_servers
from slipstream_kernels.draft_protocol.proposer_host import IN_PROCESS, HostLimits
from slipstream_kernels.models.checkpoint.fingerprint import fingerprint
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from verify_service.core.draft_source import Committed, RequestOpening
from verify_service.core.request import RequestKey, SamplingParams
from verify_service.draft_link.draft_link import DraftLink
from verify_service.draft_link.link_config import LinkConfig
from verify_service.draft_link.records import LinkFacts
from verify_service.draft_link.transports.in_process import attach_host, load_host

TEXT = tuple(range(10, 42)) * 2
"""Repeats itself, so that there is a tree at every step."""
TREE_ROWS, TREE_DEPTH = 9, 8
TURN_ROUNDS = 20
START_SECONDS = 120.0
STOP_SECONDS = 5.0
SWITCH_SECONDS = 5e-4
"""How long a thread of Python waits for another one that does not rest, as in the verify service."""


def measure(
    transports: Sequence[str], proposer: str, requests: int, rounds: int, pause: float
) -> dict[str, list[float]]:
    """Seconds of each transport's rounds, sorted, with so many requests drafted for together.

    All stand ready at once and take turns of a few rounds, so that they meet the same machine.
    """
    seconds: dict[str, list[float]] = {transport: [] for transport in transports}
    with ExitStack() as stack:
        turns = {
            transport: _rounds(stack.enter_context(_linked(transport, proposer)), proposer, requests, pause)
            for transport in transports
        }
        for turn in turns.values():
            for _ in range(max(TURN_ROUNDS, rounds // 10)):
                next(turn)
        while len(seconds[transports[-1]]) < rounds:
            for transport, turn in turns.items():
                seconds[transport].extend(next(turn) for _ in range(TURN_ROUNDS))
    return {transport: sorted(times) for transport, times in seconds.items()}


@contextmanager
def _linked(transport: str, proposer: str) -> Iterator[DraftLink]:
    """A link with the proposer attached by one transport."""
    offered = () if transport == IN_PROCESS else (transport,)
    link = DraftLink(_facts(proposer), LinkConfig(deadline=1.0, transports=offered))
    with ExitStack() as stack:
        if transport == IN_PROCESS:
            stack.enter_context(_beside(link, proposer))
        else:
            (server,) = stack.enter_context(link_servers(1))
            stack.enter_context(server.serve(link))
            stack.enter_context(_behind(link, server.port, proposer))
        yield link


def _facts(proposer: str) -> LinkFacts:
    """Those of a target that the proposer fits."""
    folder = Path(proposer.partition(":")[2] or "/")
    if not (folder / "config.json").is_file():
        return LinkFacts("m", "t", 1000, 64, 2, 4096, 64)
    config = ModelConfig.from_folder(folder)
    return LinkFacts("m", fingerprint(folder).tokenizer, config.vocab_size, 64, 2, config.max_context, 64)


@contextmanager
def _beside(link: DraftLink, proposer: str) -> Iterator[None]:
    """The proposer runs in this process."""
    host = load_host((proposer,), HostLimits())
    attach_host(link, host)
    yield
    host.stop(STOP_SECONDS)


@contextmanager
def _behind(link: DraftLink, port: int, proposer: str) -> Iterator[None]:
    """The proposer runs in a draft service."""
    command = (sys.executable, "-m", "draft_service", "--verify", f"127.0.0.1:{port}", "--port", "0")
    with subprocess.Popen((*command, "--proposers", proposer, "--log-level", "warning")) as drafter:
        try:
            limit = time.monotonic() + START_SECONDS
            while not link.known(proposer.partition(":")[0]):
                if drafter.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError("the draft service did not attach")
                time.sleep(0.01)
            yield
        finally:
            drafter.terminate()


def _rounds(link: DraftLink, proposer: str, requests: int, pause: float) -> Iterator[float]:
    """Seconds of one round after the other."""
    keys = [RequestKey(1, number) for number in range(requests)]
    for key in keys:
        link.begin(RequestOpening(key, proposer.partition(":")[0], TEXT, len(TEXT), SamplingParams(), 0, "", "", 0))
    for step in count():
        if pause:
            time.sleep(pause)
        token = TEXT[step % len(TEXT)]
        begun = time.perf_counter()
        link.commit([Committed(key, (token,), len(TEXT) + step + 1, TREE_ROWS, TREE_DEPTH) for key in keys])
        trees = link.collect(keys)
        seconds = time.perf_counter() - begun
        if step and not all(trees):
            raise RuntimeError(f"{sum(tree is None for tree in trees)} of {requests} trees did not come")
        yield seconds


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.exchange_latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--proposer", default="ngram", metavar="NAME[:DIR]")
    parser.add_argument("--transports", default="inproc,shm,grpc")
    parser.add_argument("--requests", type=_numbers, default=[1.0, 16.0])
    parser.add_argument("--pause-ms", type=_numbers, default=[0.0, 4.0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--json", default="", help="also write the figures to this file")
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_SECONDS)
    figures = []
    print(
        f"{'transport':9} {'requests':>8} {'pause ms':>8} {'p50 us':>8} {'p90':>8} {'p99':>8} {'p99.9':>8} {'ratio':>6}"
    )
    for requests in map(int, options.requests):
        for pause in options.pause_ms:
            best = 0.0
            transports = options.transports.split(",")
            measured = measure(transports, options.proposer, requests, options.rounds, pause / 1000)
            for transport, times in measured.items():
                row = [1e6 * times[int(share * (len(times) - 1))] for share in (0.5, 0.9, 0.99, 0.999)]
                best = best or row[0]
                cells = " ".join(f"{value:8.0f}" for value in row)
                print(f"{transport:9} {requests:8} {pause:8g} {cells} {row[0] / best:6.2f}", flush=True)
                names = ("p50_us", "p90_us", "p99_us", "p999_us")
                figures.append(
                    {
                        "proposer": options.proposer,
                        "transport": transport,
                        "requests": requests,
                        "pause_ms": pause,
                        **dict(zip(names, row, strict=True)),
                    }
                )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:  # noqa: PTH123 (one line suffices)
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
