from __future__ import annotations

from benchmarks.lib.runner import Answer
from benchmarks.proposers import plot, tables
from benchmarks.proposers.runs import Cell, repeats

MACHINE = {"time": "t", "cores": 2, "processor": "p", "torch": "x", "load_average": 0.1}
SETTINGS = {"limit": 3, "tokens": 8, "concurrency": 1}


def cell(workload: str, category: str, setting: str, temperature: float, length: float) -> dict[str, object]:
    sums = Cell(seconds=2.0, steps=10, waited=0.02)
    sums.every.answers, sums.every.repeating, sums.every.tokens = 4, 1, 101
    sums.every.decoded, sums.every.decode_steps = round(100 * length), 100
    place = {"workload": workload, "category": category, "setting": setting, "temperature": temperature}
    return place | sums.to_json()


def content(*cells: dict[str, object], load: float = 0.1) -> dict[str, object]:
    return {"machine": MACHINE | {"load_average": load}, "settings": SETTINGS, "cells": list(cells)}


def test_a_row_a_category_and_a_column_a_setting() -> None:
    text = tables.proposers(
        content(cell("w", "a", "x", 0.0, 1.5), cell("w", "a", "y", 0.0, 2.5), cell("w", "all", "x", 0.0, 3.5))
    )
    assert "| w: a     | 1.50 | 2.50 |" in text
    assert "| w        | 3.50 | -    |" in text
    assert "| w: a     | 50 | 50 |" in text
    assert "| w: a     | 2.00 | 2.00 |" in text
    assert "busy" not in text


def test_acceptance_lengths_are_shown_without_times_that_nobody_kept() -> None:
    kept = cell("w", "a", "x", 0.0, 1.5)
    for name in ("seconds", "tokens_a_second", "draft_ms"):
        del kept[name]
    text = tables.lengths(content(kept))
    assert "| w: a     | 1.50 |" in text
    assert "tokens/s" not in text


def test_a_busy_machine_is_told() -> None:
    assert "load average 3.0" in tables.proposers(content(cell("w", "all", "x", 0.0, 1.0), load=3.0))


def test_trees_that_came_too_late_are_counted_once() -> None:
    cells = [cell("w", "a", "x", 0.0, 1.5), cell("w", "all", "x", 0.0, 1.5), cell("v", "all", "x", 0.0, 1.5)]
    cells.append(cell("all workloads", "all", "x", 0.0, 1.5))
    assert "trees were not there" not in tables.proposers(content(*cells))
    late = [each | {"missed": 3} for each in cells]
    assert "6 trees were not there at the deadline" in tables.proposers(content(*late))


def test_what_the_noise_brings() -> None:
    text = tables.coupling(content(cell("w", "all", "tree", 1.0, 2.3), cell("w", "all", "tree-uncoupled", 1.0, 2.0)))
    assert "| w        | 1 | 2.00            | 2.30          | +15.0 % |" in text


def test_acceptance_with_and_without_answers_that_repeat_themselves() -> None:
    text = tables.acceptance(content(cell("w", "c", "x", 0.8, 1.5), cell("w", "all", "x", 0.8, 1.5)))
    assert "1.50 (-)" in text
    assert "25.0 %" in text


def test_pictures(tmp_path) -> None:
    plot.plot_acceptance(tmp_path / "a.png", content(cell("w", "a", "x", 0.0, 1.5), cell("v", "a", "y", 1.0, 2)))
    rows = [{"proposer": name, "acceptance_length": 2.0, "tokens_a_second": 9.0} for name in ("", "ngram")]
    plot.plot_search(tmp_path / "b.png", {"rows": rows})
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in ("a.png", "b.png"))


def test_sums_of_runs() -> None:
    answer = Answer((5, 6, 7), "stop", 2, 4, 1, 0, 0.1, 0.2)
    total = Cell(seconds=1.0, steps=2, waited=0.5, missed=1)
    total.every.add(answer)
    more = Cell(seconds=3.0, steps=2, waited=0.5, missed=2)
    more.every.add(answer)
    total.add(more)
    assert (total.acceptance_length, total.tokens_a_second, total.draft_ms) == (2.0, 1.5, 250.0)
    assert total.to_json()["missed"] == 3
    assert Cell().acceptance_length == 1.0


def test_repeats_finds_a_gram_that_occurs_twice() -> None:
    assert not repeats(list(range(100)))
    assert not repeats([1, 2, 3])
    assert repeats([*range(16), 99, *range(16)])
    assert repeats([7] * 17)
