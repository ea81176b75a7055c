"""Prompts for measuring: questions, conversations, edits, queries, and every turn of agents' runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lib.prompt_files import Message, Record, databases_beside, exchange, records, trajectory

MT_BENCH_CATEGORIES = frozenset(
    {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
)
"""Spec-Bench (Xia et al., 2024, table 1) counts these eight as one task: multi-turn conversation."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that ends before an assistant's message. `category` is the group that results are reported by."""

    name: str
    category: str
    messages: tuple[tuple[str, str], ...]
    """(role, content) pairs; a system's message comes first if at all, tools speak as users."""


class PromptFileError(ValueError):
    """A record of no known form."""


def load_prompts(path: Path, *, limit: int | None = None) -> list[Prompt]:
    """Prompts of one file, in order; with `limit`, that many spread evenly over its categories.

    Runs of one task, where records name it, follow one another.
    """
    found = list(enumerate(records(path), 1))
    if all("task_id" in record and "traj" in record for _, record in found):
        found.sort(key=lambda pair: int(pair[1]["task_id"]))
    databases = databases_beside(path)
    label = path.name.split(".")[0]
    prompts = [prompt for number, record in found for prompt in _prompts(record, number, label, databases)]
    return prompts if limit is None else spread(prompts, limit)


def _prompts(record: Record, number: int, label: str, databases: dict[str, str]) -> Iterator[Prompt]:
    if "turns" in record:
        category = record.get("category") or record.get("task") or label
        group = "multi-turn conversation" if category in MT_BENCH_CATEGORIES else category
        name = record.get("question_id", record.get("id", number))
        yield Prompt(str(name), group, (("user", record["turns"][0]),))
        return
    if "messages" in record:
        messages = tuple((message["role"], message["content"]) for message in record["messages"])
        labels = (record.get("source"), record.get("task"))
        yield Prompt(str(record.get("id", number)), " ".join(label for label in labels if label) or "all", messages)
        return
    said = trajectory(record)
    if said:
        for turn, (role, _) in enumerate(said):
            if role == "assistant" and turn:
                yield Prompt(f"{number}.{turn}", label, tuple(_spoken(said[:turn])))
        return
    try:
        question, _ = exchange(record, databases)
    except KeyError as error:
        raise PromptFileError(
            f"record {number}: neither a question nor a conversation nor a run in {sorted(record)}"
        ) from error
    yield Prompt(str(number), str(record.get("kind", label)), (("user", question),))


def _spoken(messages: Sequence[Message]) -> Iterator[Message]:
    """Messages in the roles that every chat template knows."""
    for index, (role, content) in enumerate(messages):
        known = role == "assistant" or (role == "system" and index == 0)
        yield role if known else "user", content


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
