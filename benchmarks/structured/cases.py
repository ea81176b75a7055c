"""What is asked: an answer that fits a schema, or calls of tools, each with what it must fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from benchmarks.lib.schemas import Schema, arguments, schemas

MODEL: Final = "target"
"""What the services call it."""
TEMPERATURES: Final = ("0", "1", "1, top-p 0.9")
_SAMPLING: Final[dict[str, dict[str, float]]] = {
    "0": {"temperature": 0.0},
    "1": {"temperature": 1.0},
    "1, top-p 0.9": {"temperature": 1.0, "top_p": 0.9},
}
_VERBS: Final = ("get", "set", "find", "book", "send", "list", "check", "update", "cancel", "convert")


@dataclass(frozen=True, slots=True)
class Case:
    """One request. `schema` is what its text must fit; `tools` are schemas of arguments by name, where it may call."""

    name: str
    kind: str
    body: dict[str, Any]
    seed: int
    schema: Schema | None = None
    tools: dict[str, Schema] | None = None

    def asked(self, law: str, max_tokens: int) -> dict[str, Any]:
        """The body of the request under one of TEMPERATURES. Laws with noise have seeds of their own."""
        seed = self.seed + 1_000_000 * TEMPERATURES.index(law)
        return {
            "model": MODEL,
            **self.body,
            **_SAMPLING[law],
            "seed": seed,
            "max_tokens": max_tokens,
            "return_token_ids": True,
        }


def cases(schema_count: int, tool_count: int, seed: int) -> list[Case]:
    """Return the requests: schemas and tool prompts, well mixed, the same ones for the same seed."""
    pick = Random(seed)
    found = [
        _with_schema(number, kind, schema, seed) for number, (kind, schema) in enumerate(schemas(schema_count, seed))
    ]
    found += [_with_tools(number, pick, seed) for number in range(tool_count)]
    pick.shuffle(found)
    return found


def _with_schema(number: int, kind: str, schema: Schema, seed: int) -> Case:
    body = {
        "messages": [{"role": "user", "content": f"Make up an example of number {number}: {kind}. Answer in JSON."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": f"{kind}_{number}", "schema": schema, "strict": True},
        },
    }
    return Case(f"{kind} {number}", kind, body, seed + number, schema=schema)


def _with_tools(number: int, pick: Random, seed: int) -> Case:
    """Calls are forced in seven of ten requests; in the others, strict tools may be called."""
    known: dict[str, Schema] = {}
    for _ in range(pick.randint(1, 4)):
        schema = arguments(pick)
        known[f"{pick.choice(_VERBS)}_{next(iter(schema['properties']))}"] = schema
    tools = [
        {
            "type": "function",
            "function": {"name": name, "description": f"Use it to {name}.", "parameters": schema, "strict": True},
        }
        for name, schema in known.items()
    ]
    first = next(iter(known))
    choices: Sequence[Any] = ["required"] * 4 + [{"type": "function", "function": {"name": first}}] * 3 + ["auto"] * 3
    choice = choices[number % 10]
    kind = "named call" if isinstance(choice, dict) else f"{choice} call"
    body = {
        "messages": [{"role": "user", "content": f"Please {first.replace('_', ' the ')} number {number} for me."}],
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": number % 2 == 0,
    }
    return Case(f"{kind} {number}", kind, body, seed + 10_000 + number, tools=known)
