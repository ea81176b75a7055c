"""What proposers are measured on: named sets of prompt files of one folder, and all of them mixed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lib.prompts import Prompt, by_category, load_prompts, spread

MIXED = "mixed"
"""All prompts of the other workloads, shuffled."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Files of a folder of prompts.

    by_category: its categories are measured one by one, else all of it at once. in_order: its prompts share contexts
    with those beside them, so the first ones are taken and not some of all.
    """

    files: tuple[str, ...]
    by_category: bool = False
    in_order: bool = False


WORKLOADS: dict[str, Workload] = {
    "spec-bench": Workload(("spec_bench_question.jsonl",), by_category=True),
    "in-domain": Workload(("in_domain_heldout.jsonl",), by_category=True),
    "code-edits": Workload(("code_edit_derived.jsonl",)),
    "trajectories": Workload(
        (
            "tau_bench_gpt-4o-airline_trajectories.json.gz",
            "tau_bench_airline_few_shot.jsonl",
            "tau_bench_retail_few_shot.jsonl",
            "repopilot_trajectories.jsonl.gz",
            "swe_agent_marshmallow_function_calling.traj",
            "swe_agent_marshmallow_window100.traj",
        ),
        in_order=True,
    ),
    "sql": Workload(("sql_eval_questions_postgres.csv", "spider_dev_examples.json.gz"), in_order=True),
}
AGENTIC = ("code-edits", "trajectories", "sql")


@dataclass(frozen=True, slots=True)
class Row:
    """Prompts that are measured together: a row of the tables. `category` is "all" where a workload is one row."""

    workload: str
    category: str
    prompts: tuple[Prompt, ...]


def load_rows(folder: Path, names: Sequence[str], limit: int, longest: int) -> list[Row]:
    """Rows of the named workloads, of `limit` prompts each where there are so many of at most `longest` characters.

    The mixed one has twice as many. Raises FileNotFoundError for a file that is not there.
    """
    rows = [row for name in names if name != MIXED for row in _rows(folder, name, WORKLOADS[name], limit, longest)]
    if MIXED in names:
        others = [prompt for row in rows for prompt in row.prompts]
        random.Random(0).shuffle(others)
        rows.append(Row(MIXED, "all", tuple(others[: 2 * limit])))
    return rows


def _rows(folder: Path, name: str, workload: Workload, limit: int, longest: int) -> list[Row]:
    loaded = [[p for p in load_prompts(folder / file) if _characters(p) <= longest] for file in workload.files]
    if workload.in_order:
        share = -(-limit // len(loaded))
        turns = [prompt for prompts in loaded for prompt in prompts[:share]]
        return [Row(name, "all", tuple(turns[:limit]))]
    prompts = [prompt for each in loaded for prompt in each]
    groups = by_category(prompts) if workload.by_category else {"all": prompts}
    return [Row(name, category, tuple(spread(group, limit))) for category, group in groups.items()]


def _characters(prompt: Prompt) -> int:
    return sum(len(content) for _, content in prompt.messages)
