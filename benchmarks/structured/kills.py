"""SIGKILL of the verify service in the middle of streamed objects, at random places."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx

from benchmarks.structured.answers import REQUEST_SECONDS, Answer
from benchmarks.structured.cases import Case
from launcher.supervision.cluster import Cluster

STREAMS = 8


@dataclass(slots=True)
class Kills:
    """`interrupted` counts streams that had begun and were not over when the service was killed."""

    kills: int = 0
    interrupted: int = 0
    differences: int = 0


@dataclass(slots=True)
class _Stream:
    text: str = ""
    calls: dict[int, list[str]] | None = None
    token_ids: tuple[int, ...] = ()
    finish_reason: str = ""

    def take(self, choice: dict[str, Any]) -> None:
        delta = choice["delta"]
        self.text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            self.calls = self.calls or {}
            known = self.calls.setdefault(call["index"], ["", ""])
            known[0] += call["function"].get("name") or ""
            known[1] += call["function"].get("arguments") or ""
        self.token_ids += tuple(choice.get("token_ids") or ())
        self.finish_reason = choice.get("finish_reason") or self.finish_reason

    @property
    def compared(self) -> tuple[Any, ...]:
        calls = tuple((name, arguments) for name, arguments in (self.calls or {}).values())
        return self.token_ids, self.text, calls, self.finish_reason


async def kill_in_the_middle(
    cluster: Cluster, asked: Sequence[tuple[Case, dict[str, Any], Answer]], kills: int, seed: int
) -> Kills:
    """Stream requests, a few at a time, and kill the verify service under them; compare with their answers.

    A kill comes once the streams together have had a random number of tokens of what they will have.
    """
    pick, count = Random(seed), Kills()
    for _ in range(kills):
        chosen = pick.sample(list(asked), STREAMS)
        total = sum(len(answer.token_ids) for _, _, answer in chosen)
        await _one(cluster, chosen, pick.randint(total // 10, total * 7 // 10), count)
    return count


async def _one(
    cluster: Cluster, chosen: Sequence[tuple[Case, dict[str, Any], Answer]], place: int, count: Kills
) -> None:
    streams = [_Stream() for _ in chosen]
    there = asyncio.Event()

    async def follow(client: httpx.AsyncClient, body: dict[str, Any], stream: _Stream) -> None:
        async with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as reply:
            reply.raise_for_status()
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    message = json.loads(line.removeprefix("data: "))
                    for choice in message.get("choices", ()):
                        stream.take(choice)
                if sum(len(each.token_ids) for each in streams) >= place:
                    there.set()

    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=REQUEST_SECONDS) as client:
        following = asyncio.gather(
            *(follow(client, body, stream) for (_, body, _), stream in zip(chosen, streams, strict=True))
        )
        await there.wait()
        await asyncio.to_thread(cluster.kill, "verify")
        count.kills += 1
        count.interrupted += sum(bool(each.token_ids) and not each.finish_reason for each in streams)
        cluster.start("verify")
        await following
    for (_, _, answer), stream in zip(chosen, streams, strict=True):
        token_ids, text, calls, reason = answer.compared
        count.differences += stream.compared != (token_ids, text or "", calls, reason)
