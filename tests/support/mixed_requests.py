"""Requests of both public APIs, streamed and whole, and what of their answers must be the same every time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from slipstream import AsyncClient
from support.ask import repeated_while


@dataclass(frozen=True)
class Ask:
    """One request. `api`: "grpc", or the path of an HTTP endpoint."""

    api: str
    body: dict[str, Any]


def mixed(stop: list[str], tokens: int) -> list[Ask]:
    """16 requests: both temperatures of every kind, `stop` in half of those that take text."""
    asks = []
    for index in range(4):
        common = {"max_tokens": tokens, "temperature": (0.0, 0.8)[index % 2], "seed": 50 + index}
        text = f"The harbour was quiet, apart from {index + 2} gulls"
        stops = {"stop": stop} if index >= 2 else {}
        http = common | {"model": "tiny", "ignore_eos": True, "return_token_ids": True, **stops}
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        penalties = {"presence_penalty": 0.4, "frequency_penalty": 0.2}
        asks += [
            Ask("grpc", common | {"prompt": text, "logprobs": 2, "ignore_eos": True, "min_tokens": 5, **stops}),
            Ask("completions", http | {"prompt": text, "logprobs": 2, **penalties}),
            Ask("completions", http | streamed | {"prompt": text, "logprobs": 1, "n": 2}),
            Ask("chat/completions", http | streamed | {"messages": [{"role": "user", "content": text}]}),
        ]
    return asks


async def answers(http: str, grpc: str, asks: list[Ask]) -> list[Any]:
    """What all of them say when they are asked at once: see `_whole`, `_streamed`, `_called`."""
    async with _clients(http, grpc) as clients:
        return await asyncio.gather(*(_answer(*clients, ask) for ask in asks))


async def answers_while(http: str, grpc: str, asks: list[Ask], action: Callable[[], object]) -> list[list[Any]]:
    """What each says each time: all at once, again and again until `action()` has returned."""
    async with _clients(http, grpc) as clients:
        return await repeated_while([partial(_answer, *clients, ask) for ask in asks], action)


@asynccontextmanager
async def _clients(http: str, grpc: str) -> AsyncIterator[tuple[AsyncClient, httpx.AsyncClient]]:
    async with AsyncClient(grpc) as client, httpx.AsyncClient(base_url=f"{http}/v1/", timeout=180) as web:
        yield client, web


async def _answer(client: AsyncClient, web: httpx.AsyncClient, ask: Ask) -> Any:
    if ask.api == "grpc":
        return await _called(client, ask.body)
    reply = await web.post(ask.api, json=ask.body)
    assert reply.status_code == 200, reply.text
    return _streamed(reply.text) if ask.body.get("stream") else _whole(reply.json())


async def _called(client: AsyncClient, body: dict[str, Any]) -> Any:
    answer = await client.generate(**body, timeout=180)
    counts = answer.usage.prompt_tokens, answer.usage.completion_tokens
    assert answer.timings.total >= answer.timings.first_token >= answer.timings.queued
    return answer.text, answer.token_ids, answer.logprobs, answer.finish_reason, answer.stop_string, counts


def _whole(body: dict[str, Any]) -> Any:
    choices = [{name: value for name, value in choice.items() if name != "speculation"} for choice in body["choices"]]
    return choices, _counts(body["usage"])


def _streamed(text: str) -> Any:
    """Of each choice: text, token ids, logprobs, how it ended. Steps may cut a stream into events as they like."""
    *lines, done = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert done == "[DONE]", done
    choices: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    for event in map(json.loads, lines):
        usage = event["usage"] or usage
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], {"text": "", "ids": [], "logprobs": {}, "ends": []})
            choice["text"] += part["delta"].get("content", "") if "delta" in part else part["text"]
            choice["ids"] += part.get("token_ids") or []
            for name, values in (part["logprobs"] or {}).items():
                choice["logprobs"].setdefault(name, []).extend(values)
            if part["finish_reason"] is not None:
                choice["ends"].append((part["finish_reason"], part["stop_reason"]))
    assert all(len(choice["ends"]) == 1 for choice in choices.values())
    return choices, _counts(usage)


def _counts(usage: dict[str, Any]) -> tuple[int, int]:
    return usage["prompt_tokens"], usage["completion_tokens"]
