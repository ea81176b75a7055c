"""What the first use of a schema costs its own request, and streams beside it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

import httpx

from benchmarks.lib.percentiles import percentile
from benchmarks.lib.schemas import Schema, record, several, text
from benchmarks.structured.answers import REQUEST_SECONDS
from benchmarks.structured.cases import MODEL

LONGER: Final = "longest gap beside a new schema less that before it or beside it as a known one, in mean gaps"
"""A mean gap is a step's time: tokens of several steps may arrive together. The median over all schemas of a kind."""
USUAL, DEAR, HOSTILE = "usual", "dear", "hostile"
KINDS: Final = (USUAL, DEAR, HOSTILE)
_DEAR: Final = 4
"""Times as many entries as a usual one."""
Window = tuple[float, float]
"""When a request was put, and when it had its first token."""
SETTLE_SECONDS: Final = 0.25
"""At least, between requests that bring a schema, so that streams run undisturbed before each."""


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


def hostile_schema(pick: Random) -> Schema:
    """A schema that takes minutes to compile, never the same twice, and is refused once its time is over."""
    letter = f"{pick.randrange(16**6):06x}"
    return {"allOf": [{"type": "string", "pattern": f"{letter}.{{{count}}}b"} for count in range(1, 60)]}


@dataclass(slots=True)
class FirstUse:
    """Seconds. first, again: from a request to its first token or refusal, with a new schema and with it once more.

    longest: of each schema the longest gap between tokens of a stream while its first request waited, for as long a
    time before that, and while its second one waited, which has a prompt and a first token, too. gaps: all of them.
    """

    first: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    longest: list[tuple[float, float, float]] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    refused: int = 0

    def add_gaps(self, streams: Sequence[Sequence[float]], first: Sequence[Window], again: Sequence[Window]) -> None:
        """Take in when tokens of streams arrived, and when requests of new schemas waited, and of known ones."""
        gaps = [pair for stamps in streams for pair in pairwise(stamps)]
        self.gaps += [after - before for before, after in gaps]

        def beside(begin: float, end: float) -> float:
            return max((after - before for before, after in gaps if before < end and after > begin), default=0.0)

        for (begin, end), known in zip(first, again, strict=True):
            undisturbed = [after - before for before, after in gaps if 2 * begin - end < after <= begin]
            self.longest.append((beside(begin, end), max(undisturbed, default=0.0), beside(*known)))

    def document(self) -> dict[str, Any]:
        """Milliseconds."""
        mean = statistics.fmean(self.gaps)
        return {
            "schemas": len(self.first),
            "refused": self.refused,
            "first token or refusal, new schema": _spread(self.first),
            "the same, known schema": _spread(self.again),
            "gaps between tokens of others": {"mean": round(1000 * mean, 3)} | _spread(self.gaps),
            "longest gap beside a new schema": _spread([each[0] for each in self.longest]),
            "longest gap of as long a time before it": _spread([each[1] for each in self.longest]),
            "longest gap beside the same, known": _spread([each[2] for each in self.longest]),
            LONGER: round(statistics.median((each[0] - max(each[1:])) / mean for each in self.longest), 2),
        }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    parts = {"median": 0.5, "p99": 0.99, "max": 1.0}
    return {name: round(1000 * (percentile(seconds, part) or 0.0), 3) for name, part in parts.items()}


async def first_use(url: str, kind: str, streams: int, count: int, entries: int, seed: int) -> FirstUse:
    """Bring so many new schemas of one kind, one after another, under free streams that never end."""
    pick, found = Random(seed), FirstUse()
    makers: dict[str, Callable[[], Schema]] = {
        USUAL: lambda: large_schema(pick, entries),
        DEAR: lambda: large_schema(pick, _DEAR * entries),
        HOSTILE: lambda: hostile_schema(pick),
    }
    arrivals: list[list[float]] = []
    windows: tuple[list[Window], list[Window]] = [], []
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS, limits=limits) as client,
        _running(client, streams, arrivals),
    ):
        took = SETTLE_SECONDS
        for number in range(count):
            schema = makers[kind]()
            for times, waited in zip((found.first, found.again), windows, strict=True):
                await asyncio.sleep(max(SETTLE_SECONDS, 1.5 * took) if times is found.first else SETTLE_SECONDS)
                began = time.perf_counter()
                found.refused += not await _first_token(client, schema, seed + number)
                ended = time.perf_counter()
                times.append(ended - began)
                waited.append((began, ended))
            took = found.first[-1]
    found.add_gaps(arrivals, *windows)
    return found


@contextlib.asynccontextmanager
async def _running(client: httpx.AsyncClient, streams: int, arrivals: list[list[float]]) -> AsyncIterator[None]:
    """Streams that go on to the end of the block: when the tokens of each answer arrived is a list of its own."""
    tasks = [asyncio.create_task(_stream(client, number, arrivals)) for number in range(streams)]
    try:
        while sum(len(stamps) > 1 for stamps in arrivals) < streams:
            await asyncio.sleep(SETTLE_SECONDS)
            if failed := next((task for task in tasks if task.done()), None):
                failed.result()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _stream(client: httpx.AsyncClient, number: int, arrivals: list[list[float]]) -> None:
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
    while True:
        stamps: list[float] = []
        arrivals.append(stamps)
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                stamps += [time.perf_counter()] * line.startswith("data: {")


async def _first_token(client: httpx.AsyncClient, schema: Schema, seed: int) -> bool:
    """Wait for a request's first token, or for the refusal of its schema; whether it has been taken.

    ValueError, with what was said, for anything else.
    """
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Make up an example. Answer in JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "new", "schema": schema}},
        "max_tokens": 4,
        "seed": seed,
        "temperature": 0.0,
        "stream": True,
    }
    async with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        if reply.status_code == httpx.codes.BAD_REQUEST:
            said = (await reply.aread()).decode()
            if "response_format" in said:
                return False
            raise ValueError(said)
        if reply.status_code != httpx.codes.OK:
            raise ValueError(f"{reply.status_code} {(await reply.aread()).decode()}")
        async for line in reply.aiter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                return True
    raise ValueError("a request ended without a token")
