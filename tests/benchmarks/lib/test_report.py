import argparse
import json
from pathlib import Path

from benchmarks.figures import BLOCKS, PAGES, RESULTS
from benchmarks.lib.report import gpu_machine, markdown_table, plain_options, write_json


def test_markdown_table_aligns_and_formats():
    lines = markdown_table(("name", "x"), [("a", 1.234), ("long name", None)]).splitlines()
    assert lines == ["| name      | x    |", "| --------- | ---- |", "| a         | 1.23 |", "| long name | -    |"]


def test_write_json_replaces_whole_files(tmp_path):
    path = tmp_path / "deep" / "x.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": [2]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": [2]}
    assert [each.name for each in path.parent.iterdir()] == ["x.json"]


def test_every_block_of_the_documentation_has_its_table():
    named = [name for page in PAGES for name in BLOCKS if f"<!-- figures: {name} -->" in page.read_text("utf-8")]
    assert sorted(named) == sorted(BLOCKS)


def test_committed_results_fit_their_tables():
    for path in RESULTS.glob("*.json"):
        if path.stem in BLOCKS:
            assert "|" in BLOCKS[path.stem](json.loads(path.read_text("utf-8")))


def test_gpu_results_render():
    machine = gpu_machine("cpu")
    assert machine["torch"]
    figures = {
        "exact": {"plain": {"machine": machine, "weights": "random", "rows": [{"context": 128, "step ms": 4.0}]}}
    }
    text = BLOCKS["engine"]({"figures": figures, "compared": {"plain": [{"context": 128, "exact / fast": 1.01}]}})
    assert "random weights" in text
    assert "| 128     | 4.00    |" in text
    assert "| 128     | 1.01         |" in text
    count = dict.fromkeys(
        ("requests", "tokens", "mismatches", "rows_compared", "row_mismatches", "drafted", "accepted", "from_cache"), 7
    )
    demo = {"prompts": 2, "prompt_tokens": 90, "tokens": 64, "cells": {"a": {}}, "summary": {"all": count}}
    inflated = {"prompts": 2, "tokens": 128, "equal_answers": 2, "equal_tokens": 128, "unexplained": 0}
    text = BLOCKS["gpu_exactness"]({"machine": machine, "parts": {"demo": demo, "inflated": inflated}})
    assert "demo: all" in text
    assert "2 of 2 greedy answers" in text


def test_options_keep_of_paths_their_names_alone():
    options = argparse.Namespace(output=Path("/somewhere/on/a/machine/out.json"), rounds=3, model=None)
    assert plain_options(options) == {"output": "out.json", "rounds": 3, "model": None}
