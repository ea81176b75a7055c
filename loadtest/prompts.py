"""Conversations to ask, from a file or a few of our own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Message = dict[str, str]
"""`role` and `content`."""

QUESTIONS = (
    "Write three sentences about a lighthouse in winter.",
    "Explain to a child why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List five things to take along on a long bicycle ride.",
    "What is the difference between weather and climate?",
    "Write a short letter of thanks to a neighbour who watered the plants.",
    "How do bees find their way home?",
    "Summarise in two sentences what a library does for a town.",
)


def load_prompts(path: Path | None) -> list[list[Message]]:
    """Conversations of a JSON-lines file, or the built-in ones.

    A line holds `messages`, or `turns` (the first is asked), or `prompt`. ValueError names a line that holds none.
    """
    if path is None:
        return [[{"role": "user", "content": question}] for question in QUESTIONS]
    lines = path.read_text(encoding="utf-8").split("\n")
    conversations = [_conversation(json.loads(line), number) for number, line in enumerate(lines, 1) if line.strip()]
    if not conversations:
        raise ValueError(f"{path} holds no prompts")
    return conversations


def forever(conversations: list[list[Message]]) -> Iterator[list[Message]]:
    """The conversations in turn, again and again."""
    return itertools.cycle(conversations)


def _conversation(record: dict[str, Any], number: int) -> list[Message]:
    if record.get("messages"):
        return [{"role": each["role"], "content": each["content"]} for each in record["messages"]]
    question = record["turns"][0] if record.get("turns") else record.get("prompt")
    if not isinstance(question, str):
        raise ValueError(f"line {number} has no messages, turns or prompt")
    return [{"role": "user", "content": question}]
