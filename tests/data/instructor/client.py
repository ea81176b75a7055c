"""Asks a server for pydantic models through `instructor`, in the modes that OpenAI's API has, and prints what came.

    python client.py BASE_URL MODEL

Runs in an environment of its own, with instructor and the official client that it wants.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

ASK: list[Any] = [{"role": "user", "content": "Describe a person."}]


class Home(BaseModel):
    model_config = ConfigDict(extra="forbid")

    street: str = Field(max_length=10)
    number: int = Field(ge=1, le=99)


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=10)
    mood: Literal["happy", "sad"]
    home: Home
    tags: list[Literal["a", "b"]] = Field(max_length=2)


class Picky(Person):
    """Takes the third attempt, whatever it says."""

    @field_validator("mood")
    @classmethod
    def third_time(cls, mood: str, info: ValidationInfo) -> str:
        """Raise ValueError twice."""
        attempts: list[str] = (info.context or {})["attempts"]
        attempts.append(mood)
        if len(attempts) < 3:
            raise ValueError(f"mood {mood} is not what was meant")
        return mood


def asked(url: str, model: str, mode: instructor.Mode) -> dict[str, Any]:
    """What each of instructor's ways to ask gives in one mode."""
    options: dict[str, Any] = {"model": model, "temperature": 0, "seed": 1, "max_tokens": 300, "messages": ASK}
    arguments: dict[str, Any] = {"base_url": url, "api_key": "none", "max_retries": 0}
    client = instructor.from_openai(openai.OpenAI(**arguments), mode=mode)
    sent: list[int] = []
    person, completion = client.chat.completions.create_with_completion(response_model=Person, **options)
    client.on("completion:kwargs", lambda *_, **keywords: sent.append(len(keywords["messages"])))
    attempts: list[str] = []
    context = {"attempts": attempts}
    picky = client.chat.completions.create(response_model=Picky, max_retries=2, context=context, **options)
    parts = [part.model_dump() for part in client.chat.completions.create_partial(response_model=Person, **options)]

    async def at_once() -> list[dict[str, Any]]:
        async with openai.AsyncOpenAI(**arguments) as inner:
            asking = instructor.from_openai(inner, mode=mode)
            answers = (asking.chat.completions.create(response_model=Person, **options) for _ in range(2))
            return [answer.model_dump() for answer in await asyncio.gather(*answers)]

    return {
        "person": person.model_dump(),
        "reason": completion.choices[0].finish_reason,
        "picky": picky.model_dump(),
        "attempts": attempts,
        "messages": sent[:3],
        "parts": parts,
        "at_once": asyncio.run(at_once()),
    }


def main(url: str, model: str) -> None:
    """Print a JSON object by mode."""
    modes = (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
    print(json.dumps({mode.name: asked(url, model, mode) for mode in modes}))


if __name__ == "__main__":
    main(*sys.argv[1:])
