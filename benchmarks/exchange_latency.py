"""Round trip of a step's commits and trees, by each transport on the CPU.

By `inproc` the proposer runs in this process, which is what the boundary's cost is measured against; by the others a
draft service runs as its own process. This one plays the verify loop on the draft link, with no model in between: the
time from `commit` to the last tree in `collect`, n-gram lookup included. Run with --pause to leave the time of a
verify step between rounds, as in serving, where both ends have gone to sleep meanwhile.

    python -m benchmarks.exchange_latency --requests 1,16 --pause-ms 0,4
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.rpc.server import GrpcServer
from slipstream_kernels.exchange.in_process import IN_PROCESS
from verify_service.draft_link import DraftLink
from verify_service.draft_records import LinkFacts
from verify_service.draft_servicer import SERVICE, DraftLinkServicer
from verify_service.in_process import attach_host, load_host
from verify_service.link_types import LinkConfig
from verify_service.request import FinishReason, RequestKey, SamplingParams
from verify_service.tree_source import Committed, Opening

TEXT = tuple(range(10, 42)) * 2
"""Repeats itself, so that there is a tree at every step."""
TREE_ROWS, TREE_DEPTH = 9, 8
START_SECONDS = 120.0
STOP_SECONDS = 5.0
SWITCH_SECONDS = 5e-4
"""How long a thread of Python waits for another one that does not rest, as in the verify service."""


@contextmanager
def served(link: DraftLink) -> Iterator[int]:
    """The link's RPCs on an event loop in another thread, as in the verify service; yields the port."""
    events = asyncio.new_event_loop()
    thread = threading.Thread(target=events.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[GrpcServer, int]:
        servicer = DraftLinkServicer()
        servicer.link = link
        server = GrpcServer(host="127.0.0.1", port=0, services=[SERVICE], register=servicer.register)
        return server, await server.start()

    server, port = asyncio.run_coroutine_threadsafe(start(), events).result()
    try:
        yield port
    finally:
        link.close()
        asyncio.run_coroutine_threadsafe(server.drain(1), events).result()
        events.call_soon_threadsafe(events.stop)
        thread.join()


def measure(transport: str, requests: int, rounds: int, pause: float) -> list[float]:
    """Seconds of each round, sorted, with so many requests drafted for together."""
    offered = () if transport == IN_PROCESS else (transport,)
    link = DraftLink(LinkFacts("m", "t", 1000, 64, 2, 4096, 64), LinkConfig(deadline=1.0, transports=offered))
    with served(link) as port, _beside(link) if transport == IN_PROCESS else _behind(link, port):
        return sorted(_rounds(link, requests, rounds, pause))


@contextmanager
def _beside(link: DraftLink) -> Iterator[None]:
    """The proposer runs in this process."""
    host = load_host(("ngram",), threads=1)
    attach_host(link, host)
    yield
    host.stop(STOP_SECONDS)


@contextmanager
def _behind(link: DraftLink, port: int) -> Iterator[None]:
    """The proposer runs in a draft service."""
    command = (sys.executable, "-m", "draft_service", "--verify", f"127.0.0.1:{port}", "--port", "0")
    with subprocess.Popen((*command, "--log-level", "warning")) as drafter:
        try:
            limit = time.monotonic() + START_SECONDS
            while not link.known("ngram"):
                if drafter.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError("the draft service did not attach")
                time.sleep(0.01)
            yield
        finally:
            drafter.terminate()


def _rounds(link: DraftLink, requests: int, rounds: int, pause: float) -> list[float]:
    keys = [RequestKey(1, number) for number in range(requests)]
    for key in keys:
        link.begin(Opening(key, "ngram", TEXT, len(TEXT), SamplingParams(), 0, "", "", 0))
    seconds, warm_up = [], rounds // 10
    for step in range(warm_up + rounds):
        if pause:
            time.sleep(pause)
        token = TEXT[step % len(TEXT)]
        begun = time.perf_counter()
        link.commit([Committed(key, (token,), len(TEXT) + step + 1, TREE_ROWS, TREE_DEPTH) for key in keys])
        trees = link.collect(keys)
        if step >= warm_up:
            seconds.append(time.perf_counter() - begun)
            if not all(trees):
                raise RuntimeError(f"{sum(tree is None for tree in trees)} of {requests} trees did not come")
    for key in keys:
        link.end(key, FinishReason.LENGTH)
    return seconds


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
            for transport in options.transports.split(","):
                times = measure(transport, requests, options.rounds, pause / 1000)
                row = [1e6 * times[int(share * (len(times) - 1))] for share in (0.5, 0.9, 0.99, 0.999)]
                best = best or row[0]
                cells = " ".join(f"{value:8.0f}" for value in row)
                print(f"{transport:9} {requests:8} {pause:8g} {cells} {row[0] / best:6.2f}", flush=True)
                names = ("p50_us", "p90_us", "p99_us", "p999_us")
                figures.append(
                    {
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
