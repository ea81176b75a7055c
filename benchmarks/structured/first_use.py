"""What the first use of a schema costs its own request, and streams beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

import httpx

from benchmarks.lib.percentiles import percentile
from benchmarks.structured.answers import REQUEST_SECONDS
from benchmarks.structured.cases import MODEL
from benchmarks.structured.schemas import Schema, record, several, text

LONGER: Final = "longest gap beside a new schema less the longest without, in mean gaps"
"""A mean gap is a step's time: tokens of several steps may arrive together."""
SETTLE_SECONDS: Final = 0.25
"""Between requests that bring a schema, so that streams run undisturbed before each."""


def large_schema(pick: Random, entries: int) -> Schema:
    """A schema that takes a while to compile, never the same twice: records within records, long enumerations."""
    names = [f"{pick.randrange(16**6):06x}_{number}" for number in range(entries)]
    inner = record({f"field_{name}": text(40, pattern="^[a-z]+( [a-z]+)*$") for name in names[: entries // 4]})
    return record(
        {
            "kind": {"enum": names},
            "parts": several(inner, 40),
            "matches": {"anyOf": [record({"type": {"const": name}, "note": text(200)}) for name in names[:60]]},
        }
    )


@dataclass(slots=True)
class FirstUse:
    """Seconds. first, again: from a request to its first token, with a new schema and with the same one a second time.

    quiet, beside: gaps between tokens of the streams, of requests without a new schema under way and with one.
    """

    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    quiet: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Milliseconds."""
        gaps = {"quiet": _spread(self.quiet), "beside a new schema": _spread(self.beside)}
        return {
            "first token, new schema": _spread(self.first),
            "first token, known schema": _spread(self.again),
            "gaps between tokens of others": gaps,
            LONGER: round((max(self.beside) - max(self.quiet)) / statistics.fmean(self.quiet), 2),
        }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    parts = {"median": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(1000 * (percentile(seconds, part) or 0.0), 3) for name, part in parts.items()}


async def first_use(url: str, streams: int, count: int, entries: int, seed: int) -> FirstUse:
    """Bring so many new schemas, one after another, under free streams that never end."""
    found, pick = FirstUse(), Random(seed)
    arrivals: list[list[float]] = [[] for _ in range(streams)]
    loud: list[tuple[float, float]] = []
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS, limits=limits) as client,
        _running(client, arrivals),
    ):
        for number in range(count):
            schema = large_schema(pick, entries)
            for times in (found.first, found.again):
                await asyncio.sleep(SETTLE_SECONDS)
                began = time.perf_counter()
                times.append(await _first_token(client, schema, seed + number))
                if times is found.first:
                    loud.append((began, time.perf_counter()))
    for stamps in arrivals:
        for before, after in pairwise(stamps):
            beside = any(before < end and after > begin for begin, end in loud)
            (found.beside if beside else found.quiet).append(after - before)
    return found


@contextlib.asynccontextmanager
async def _running(client: httpx.AsyncClient, arrivals: Sequence[list[float]]) -> AsyncIterator[None]:
    """Streams that go on to the end of the block; each begins anew when its answer is over, which is no gap."""
    tasks = [asyncio.create_task(_stream(client, number, stamps)) for number, stamps in enumerate(arrivals)]
    try:
        while not all(arrivals):
            await asyncio.sleep(SETTLE_SECONDS)
            if failed := next((task for task in tasks if task.done()), None):
                failed.result()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stream(client: httpx.AsyncClient, number: int, stamps: list[float]) -> None:
    body = {
        "model": MODEL,
        "prompt": f"Tell me a long story about number {number}.",
        "max_tokens": 3500,
        "ignore_eos": True,
        "temperature": 1.0,
        "seed": number,
        "stream": True,
        "speculation": {"enabled": False},
    }
    async with client.stream("POST", "/v1/completions", json=body) as reply:
        reply.raise_for_status()
        async for line in reply.aiter_lines():
            stamps += [time.perf_counter()] * line.startswith("data: {")


async def _first_token(client: httpx.AsyncClient, schema: Schema, seed: int) -> float:
    """Seconds until a request's first token; ValueError, with what was said, for a refusal."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Make up an example. Answer in JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "new", "schema": schema}},
        "max_tokens": 4,
        "seed": seed,
        "temperature": 0.0,
        "stream": True,
    }
    began = time.perf_counter()
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.status_code != httpx.codes.OK:
            raise ValueError(f"{reply.status_code} {(await reply.aread()).decode()}")
        async for line in reply.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                return time.perf_counter() - began
    raise ValueError("a request ended without a token")
