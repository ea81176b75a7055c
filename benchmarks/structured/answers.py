"""Answers of a gateway to chat completions, and whether they fit what was asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import jsonschema

from benchmarks.structured.cases import Case

REQUEST_SECONDS: Final = 600.0
_FINISHED: Final = ("stop", "tool_calls")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client was told: `calls` are (name, arguments). What was drafted and accepted is not compared."""

    token_ids: tuple[int, ...]
    text: str | None
    calls: tuple[tuple[str, str], ...]
    finish_reason: str
    prompt_ids: tuple[int, ...]
    drafted: int
    accepted: int

    @property
    def compared(self) -> tuple[Any, ...]:
        """What no drafter may show in."""
        return self.token_ids, self.text, self.calls, self.finish_reason

    @property
    def finished(self) -> bool:
        """Whether the answer came to its own end."""
        return self.finish_reason in _FINISHED

    @classmethod
    def of(cls, body: dict[str, Any]) -> Answer:
        """The answer of a response's body."""
        choice, speculation = body["choices"][0], body["usage"].get("speculation") or body["usage"]
        message = choice["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        return cls(
            token_ids=tuple(choice["token_ids"]),
            text=message.get("content"),
            calls=tuple(calls),
            finish_reason=choice["finish_reason"],
            prompt_ids=tuple(body["prompt_token_ids"]),
            drafted=speculation["drafted_tokens"],
            accepted=speculation["accepted_tokens"],
        )


def misfit(case: Case, answer: Answer) -> str | None:
    """Say in which way a finished answer is not what was asked for; None where it is, or was cut off."""
    if not answer.finished:
        return None
    try:
        if case.schema is not None:
            jsonschema.validate(json.loads(answer.text or ""), case.schema)
        for name, written in answer.calls:
            assert case.tools is not None
            if name not in case.tools:
                return f"it calls {name}, which is no tool of the request"
            jsonschema.validate(json.loads(written), case.tools[name])
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).partition("\n")[0]
    return None


async def ask_all(
    url: str, bodies: Sequence[dict[str, Any]], concurrency: int, done: Callable[[], object] = lambda: None
) -> list[Answer]:
    """Answers in the order of `bodies`, so many requests at a time. ValueError, with what was said, for a refusal."""
    answers: dict[int, Answer] = {}
    waiting = iter(enumerate(bodies))

    async with httpx.AsyncClient(base_url=url, timeout=REQUEST_SECONDS) as client:

        async def work() -> None:
            for index, body in waiting:
                reply = await client.post("/v1/chat/completions", json=body)
                if reply.status_code != httpx.codes.OK:
                    raise ValueError(f"{body['seed']}: {reply.status_code} {reply.text}")
                answers[index] = Answer.of(reply.json())
                done()

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    return [answers[index] for index in range(len(bodies))]
