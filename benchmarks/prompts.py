"""Prompts for measuring, read from JSON lines: Spec-Bench questions or conversations with a source and a task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MT_BENCH_CATEGORIES = frozenset(
    {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
)
"""Spec-Bench (Xia et al., 2024, table 1) counts these eight as one task: multi-turn conversation."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that ends with a user's message. `category` is the group that results are reported by."""

    name: str
    category: str
    messages: tuple[tuple[str, str], ...]
    """(role, content) pairs."""


class PromptFileError(ValueError):
    """A line that is neither a question nor a conversation."""


def load_prompts(path: Path, *, limit: int | None = None) -> list[Prompt]:
    """Prompts of one file, in order; with `limit`, that many spread evenly over its categories."""
    lines = path.read_bytes().split(b"\n")  # on the newline byte only: texts may hold U+2028
    prompts = [_prompt(json.loads(line), number) for number, line in enumerate(lines, 1) if line.strip()]
    return prompts if limit is None else spread(prompts, limit)


def _prompt(record: dict[str, Any], line: int) -> Prompt:
    if "turns" in record:
        category = record["category"]
        group = "multi-turn conversation" if category in MT_BENCH_CATEGORIES else category
        return Prompt(str(record["question_id"]), group, (("user", record["turns"][0]),))
    if "messages" in record:
        messages = tuple((message["role"], message["content"]) for message in record["messages"])
        labels = (record.get("source"), record.get("task"))
        return Prompt(str(record.get("id", line)), " ".join(label for label in labels if label) or "all", messages)
    raise PromptFileError(f"line {line}: neither 'turns' nor 'messages' in {sorted(record)}")


def by_category(prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
    """Prompts by category, in order of first appearance."""
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    return groups


def spread(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts, categories taken in turn and members at even distances; in the order of `prompts`."""
    groups = list(by_category(prompts).values())
    shares = [0] * len(groups)
    for turn in range(min(count, len(prompts))):
        open_groups = [i for i, group in enumerate(groups) if shares[i] < len(group)]
        shares[min(open_groups, key=lambda i: (shares[i], i))] += 1
        assert sum(shares) == turn + 1
    chosen = {
        group[index * len(group) // share].name
        for group, share in zip(groups, shares, strict=True)
        for index in range(share)
    }
    return [prompt for prompt in prompts if prompt.name in chosen]
