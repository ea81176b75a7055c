"""Tokens a second of the same requests, free and held to a grammar, drafted for and not: loops in alternation."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from benchmarks.structured.answers import REQUEST_SECONDS

FREE, HELD, HELD_DRAFTED, FREE_DRAFTED, HELD_BOTH = (
    "free", "held", "held, grammar drafts", "free, drafter", "held, drafter and grammar",
)  # fmt: skip
"""What is asked for: with a grammar or without; without speculation, with what the grammar forces, with a drafter."""
_CONSTRAINTS: Final = ("response_format", "tools", "tool_choice", "parallel_tool_calls")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to ask: of which server, held or free, drafted for or not."""

    name: str
    url: str
    held: bool
    drafted: bool


@dataclass(slots=True)
class Rates:
    """Tokens a second of each way, one figure a round."""

    rounds: dict[str, list[float]] = field(default_factory=dict)
    tokens: int = 0

    def add(self, name: str, rate: float) -> None:
        """One more round of a way."""
        self.rounds.setdefault(name, []).append(rate)

    def median(self, name: str) -> float:
        """Of a way's rounds."""
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, base: str) -> float:
        """The median of what a round of one way is to the same round of another."""
        return statistics.median(a / b for a, b in zip(self.rounds[name], self.rounds[base], strict=True))


def body_of(way: Way, held: Mapping[str, Any], tokens: int, rendered: Sequence[int]) -> dict[str, Any]:
    """The body of a request: as it is asked for under its grammar, or free from the same prompt with as many tokens.

    One that is drafted for says nothing of speculation: rows are chosen by what they cost, as for anybody.
    """
    body = dict(held) | {"return_token_ids": False}
    if not way.drafted:
        body["speculation"] = {"enabled": False}
    if way.held:
        return body
    for name in (*_CONSTRAINTS, "messages"):
        body.pop(name, None)
    return body | {"prompt": list(rendered), "max_tokens": tokens, "ignore_eos": True}


async def closed_loop(url: str, bodies: Sequence[dict[str, Any]], concurrency: int) -> tuple[float, list[int]]:
    """Put the requests, so many at a time; return the seconds that took, and how many tokens each yielded.

    ValueError, with what was said, for a refusal.
    """
    waiting, counts = iter(enumerate(bodies)), [0] * len(bodies)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS, limits=limits) as client:

        async def work() -> None:
            for index, body in waiting:
                path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
                reply = await client.post(path, json=body)
                if reply.status_code != httpx.codes.OK:
                    raise ValueError(f"{reply.status_code} {reply.text}")
                counts[index] = reply.json()["usage"]["completion_tokens"]

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
        return time.perf_counter() - began, counts


async def measured(
    ways: Sequence[Way], asked: Sequence[tuple[dict[str, Any], Sequence[int]]], concurrency: int, rounds: int
) -> Rates:
    """Each way in turn, so many rounds after one that is not counted. `asked`: bodies and the ids of their prompts.

    Free answers have as many tokens as those that are held to a grammar. ValueError where these differ between rounds.
    """
    held = next(way for way in ways if way.held and not way.drafted)
    bodies = [body for body, _ in asked]
    _, counts = await closed_loop(held.url, [body_of(held, body, 0, ()) for body in bodies], concurrency)
    rates = Rates(tokens=sum(counts))
    put = {
        way.name: [body_of(way, body, count, ids) for (body, ids), count in zip(asked, counts, strict=True)]
        for way in ways
    }
    for number in range(rounds + 1):
        for way in ways:
            seconds, found = await closed_loop(way.url, put[way.name], concurrency)
            if found != counts:
                raise ValueError(f"{way.name}: {sum(found)} tokens, {rates.tokens} in the round before")
            if number:
                rates.add(way.name, rates.tokens / seconds)
    return rates
