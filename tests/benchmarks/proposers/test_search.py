from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from benchmarks.proposers.runs import PLAIN, Cell, Setting
from benchmarks.proposers.search import Grid, Search, candidates

GRID = Grid(steps=(2, 4), topk=(1, 4), rows=(4, 8, 40))
SPECS = ("draft-model:/m", "suffix", "hybrid", "mine=a.b:c:d")


def test_the_grid_holds_every_tree_that_can_be_drafted_once() -> None:
    assert GRID.trees(1) == [(2, 3), (4, 5)]
    assert GRID.trees(4) == [(2, 4), (2, 8), (4, 8), (4, 40)], "2 steps of 4 children make 21 rows at most"


def test_candidates_are_hosted_and_carry_the_arguments_to_start_with() -> None:
    hosted, found = candidates(SPECS, GRID)
    factory = "draft_service.proposers.draft_model:create:/m"
    assert hosted == [
        "draft-model:/m:num_steps=4:num_draft_tokens=40:topk=4",
        "suffix:num_steps=39:num_draft_tokens=40",
        "hybrid:draft-model+suffix+mine",
        "mine=a.b:c:d",
        f"draft-model-topk1={factory}:num_steps=4:num_draft_tokens=5:topk=1",
        f"draft-model-topk4={factory}:num_steps=4:num_draft_tokens=40:topk=4",
    ]
    by_name = {each.setting.name: each for each in found}
    assert len(by_name) == len(found) == 2 + 2 + 4 + 3 * 3
    assert by_name["plain"].arguments == "--draft none"
    assert by_name["adaptive"].setting.adaptive
    tree = by_name["draft-model, 4 steps, top-k 4, 8 rows"]
    assert tree.setting == Setting(tree.setting.name, "draft-model-topk4", 8, 4)
    assert tree.arguments.startswith("--draft 'draft-model:/m:num_steps=4:num_draft_tokens=8:topk=4'")
    assert by_name["mine, 8 rows"].arguments.startswith("--draft 'mine=a.b:c:d'")
    members = f"--draft '{hosted[0]}' --draft '{hosted[1]}' --draft '{hosted[3]}'"
    merged = by_name["hybrid, 8 rows"].arguments
    assert merged.startswith(f"--draft '{hosted[2]}:num_steps=7:num_draft_tokens=8' {members}"), "its members come too"
    names = {spec.partition("=")[0].partition(":")[0] for spec in hosted}
    assert {each.setting.proposer for each in found} <= names | {""}


@dataclass
class Course:
    """Stands for services on which a setting's speed is the length of its name."""

    runs: list[tuple[str, int]] = field(default_factory=list)
    hold: float = 0.0

    async def measure(self, setting: Setting, prompts: Sequence[object], **_: object) -> Cell:
        self.runs.append((setting.name, len(prompts)))
        await asyncio.sleep(self.hold)
        cell = Cell(seconds=len(prompts) / len(setting.name), steps=len(prompts))
        cell.every.answers = cell.every.tokens = len(prompts)
        cell.every.decoded, cell.every.decode_steps = 100 - len(setting.name), 10
        return cell


def race(course: Course, objective: str, prompts: int, seconds: float = 100.0) -> Search:
    search = Search(course, objective, 8, 0.0, 2)
    found = candidates(("draft-model:/m", "suffix"), GRID)[1]
    asyncio.run(search.run(found, [(1,)] * prompts, seconds=seconds, done=lambda: None))
    return search


def test_the_fastest_wins_and_plain_decoding_stays_to_compare_with() -> None:
    course = Course()
    search = race(course, "speed", 1000)
    rows = search.table()
    assert rows[0]["setting"] == "draft-model, 4 steps, top-k 4, 40 rows"
    assert "num_draft_tokens=40:topk=4" in search.best()["most tokens a second"]
    assert rows[0]["against_plain"] == pytest.approx(len(rows[0]["setting"]) / len("plain"))
    answers = {row["setting"]: row["answers"] for row in rows}
    assert answers["plain"] == answers[rows[0]["setting"]] > answers["suffix, 4 rows"] == 4
    assert sum(row["rounds"] == rows[0]["rounds"] for row in rows) <= 4
    assert course.runs[0] == (PLAIN.name, 4)


def test_the_longest_acceptance_wins_where_that_is_asked_for() -> None:
    assert race(Course(), "acceptance", 1000).table()[0]["setting"] == "plain"


def test_few_prompts_and_little_time_end_it_with_what_there_is() -> None:
    assert {row["rounds"] for row in race(Course(), "speed", 3).table()} == {1}
    late = Course(hold=0.01)
    rows = race(late, "speed", 10_000, seconds=0.0).table()
    assert len(late.runs) == 1
    assert rows[0]["rounds"] == 0
