"""The page: whole in one file, and true to the figures."""

from __future__ import annotations

from html.parser import HTMLParser

from training.evaluate.report import headlines, render, render_text
from training.evaluate.run import ALL
from training.evaluate.simulated import Simulated

SIMULATED = Simulated(2.5, (0.8, 0.5), {"step": [1.0, 2.0], "loss": [3.0, 2.0], "accuracy 1": [0.1, 0.2]})


def figures(length, *, positions=(), trees=0.0, seconds=0.01, drafted=60):
    return {
        "conversations": 7, "answers": 7, "repeating_answers": 0, "decoded_tokens": 70, "decode_steps": 30,
        "drafted_tokens": drafted, "tree_steps": 30, "acceptance_length": length, "standard_error": 0.05,
        "steps_with_tree": trees,
        "accepted_by_position": list(positions), "seconds_per_token": seconds,
    }  # fmt: skip


def result(**drafted):
    cells = [("", figures(1.0)), ("head", figures(2.0, positions=[0.6, 0.4], seconds=0.005, **drafted))]
    return {
        "settings": {"proposers": ["head"], "note": "<script>alert(1)</script>"},
        "inputs": [{"name": "heldout.jsonl", "bytes": 3, "sha256": "ab" * 32}],
        "model": {"name": "target"},
        "prompts": 8,
        "failures": {"InvalidArgument": 1},
        "cells": [
            {"proposer": name, "temperature": 0.0, "different_answers": 2 if name and not drafted else 0}
            | {"categories": {"<maths>": each, ALL: each}}
            for name, each in cells
        ],
    }


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text.append(data.strip())


def test_the_page_needs_nothing_else_and_shows_what_was_measured():
    page = Page(render(result(trees=1.0), SIMULATED, title="Acceptance of head"))
    assert page.links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert len(page.links) == 4
    assert "script" not in page.tags
    for shown in ("<maths>", "2.00 ± 0.10", "2.20", "-9.1%", "2.00x", "0.600", "0.800", "heldout.jsonl", "5.00"):
        assert any(shown in text for text in page.text), shown
    assert not [text for text in page.text if "answered otherwise" in text]


def test_a_page_without_a_simulation_has_no_curves():
    page = Page(render(result(trees=1.0), None, title="Acceptance of head"))
    assert len(page.links) == 2
    assert "simulated" not in page.text[page.text.index("By position") :]


def test_what_belittles_the_figures_is_said():
    text = render_text(result(), None)
    assert "2 conversations were answered otherwise" in text
    assert "0.0% of the steps had a tree" in text
    assert "1 conversations were refused" in text


def test_the_simulated_figure_stands_beside_greedy_answers_of_the_first_if_it_makes_chains():
    plain, head = headlines(result(trees=1.0), SIMULATED)
    assert (plain["simulated"], plain["speed"]) == ("", "")
    assert (head["simulated"], head["difference"], head["speed"]) == ("2.20", "-9.1%", "2.00x")
    both = result(trees=1.0, drafted=61)
    both["cells"].append({**result(trees=1.0)["cells"][1], "proposer": "chain"})
    assert [line["simulated"] for line in headlines(both, SIMULATED)] == ["", "", ""]
    both["settings"]["proposers"] = ["chain", "head"]
    assert [line["simulated"] for line in headlines(both, SIMULATED)] == ["", "", "2.20"]


def test_without_a_chain_the_simulated_figure_is_only_named():
    trees = result(trees=1.0, drafted=61)
    assert not any(line["simulated"] for line in headlines(trees, SIMULATED))
    assert "The simulated figure, 2.50, is that of a chain" in render_text(trees, SIMULATED)
    assert "is that of a chain" not in render_text(result(trees=1.0), SIMULATED)
