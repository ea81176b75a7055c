"""Rounds of the same requests in several ways that take turns, and the processor time that services spend on each."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import psutil

from launcher.supervision.cluster import Cluster

PROMPTS: Final = ("Explain why the sky is blue.", "What is a database?", "How do I make tea?", "Tell me about cats.")
REQUEST_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class Way:
    """How the requests of a round are made: to whom, and how many of them, the first ones, ask for their trace."""

    name: str
    cluster: Cluster
    traced: int = 0


@dataclass(frozen=True, slots=True)
class Load:
    """A round's requests, `streams` at a time, each of as many tokens exactly."""

    streams: int
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens a second of the requests that ask for no trace and of all, and processor seconds of each service."""

    rate: float
    untraced_rate: float
    cpu: dict[str, float]

    @property
    def cpu_seconds(self) -> float:
        """Of all services."""
        return sum(self.cpu.values())


def cpu_seconds(cluster: Cluster) -> dict[str, float]:
    """Processor time of each service so far and of its children, in seconds, as exact as the kernel counts it."""
    found = {}
    for name, process in cluster.processes.items():
        family = [process.pid, *(child.pid for child in psutil.Process(process.pid).children(recursive=True))]
        found[name] = sum(time.clock_gettime(_clock_of(pid)) for pid in family)
    return found


def _clock_of(pid: int) -> int:
    """The kernel's id of a process's clock of processor time (CPUCLOCK_SCHED, include/linux/posix-timers_types.h)."""
    return (~pid << 3) | 2


async def run_round(way: Way, load: Load) -> tuple[Round, tuple[str, ...]]:
    """One round, and its answers in order."""
    limits = httpx.Limits(max_connections=load.streams, max_keepalive_connections=load.streams)
    async with httpx.AsyncClient(base_url=way.cluster.http_url, timeout=REQUEST_SECONDS, limits=limits) as client:
        waiting = iter(range(load.requests))
        raw: dict[int, bytes] = {}
        ended: dict[int, float] = {}

        async def stream() -> None:
            for number in waiting:
                begun = time.perf_counter()
                raw[number] = await _ask(client, way, number, load.tokens)
                ended[number] = time.perf_counter() - begun

        before, begun = cpu_seconds(way.cluster), time.perf_counter()
        await asyncio.gather(*(stream() for _ in range(load.streams)))
        seconds, after = time.perf_counter() - begun, cpu_seconds(way.cluster)
    untraced = [load.tokens / ended[number] for number in range(way.traced, load.requests)]
    cpu = {name: after[name] - before[name] for name in after}
    answers = tuple(_text(raw[number]) for number in range(load.requests))
    rate = load.requests * load.tokens / seconds
    return Round(rate, sum(untraced) / len(untraced) if untraced else 0.0, cpu), answers


async def _ask(client: httpx.AsyncClient, way: Way, number: int, tokens: int) -> bytes:
    body = {
        "model": way.cluster.layout.model.name,
        "messages": [{"role": "user", "content": PROMPTS[number % len(PROMPTS)]}],
        "max_tokens": tokens, "temperature": 0.7, "seed": number, "ignore_eos": True, "stream": True,
        "speculation": {"enabled": True, "trace": number < way.traced},
    }  # fmt: skip
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        content = await answer.aread()
    if answer.status_code != httpx.codes.OK:
        raise SystemExit(content.decode(errors="replace"))
    return content


def _text(raw: bytes) -> str:
    """The answer's text, which a trace does not change."""
    text = ""
    for line in raw.split(b"\n\n"):
        if line.startswith(b"data: {"):
            event: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                raise SystemExit(f"an answer broke off: {event['error']}")
            text += "".join((choice["delta"] or {}).get("content") or "" for choice in event["choices"])
    return text


async def take_turns(ways: Sequence[Way], load: Load, rounds: int) -> Mapping[str, list[Round]]:
    """As many rounds of each way, in turns whose order changes; answers must be equal. One more of each warms up."""
    found: dict[str, list[Round]] = {way.name: [] for way in ways}
    answers = set()
    for number in range(rounds + 1):
        turn = number % len(ways)
        for way in (*ways[turn:], *ways[:turn]):
            done, texts = await run_round(way, load)
            answers.add(texts)
            if number:
                found[way.name].append(done)
    if len(answers) != 1:
        raise SystemExit("answers differ")
    return found
