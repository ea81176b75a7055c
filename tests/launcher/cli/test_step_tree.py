"""A verify step as a tree in a terminal."""

from __future__ import annotations

from rich.console import Console

from launcher.cli.step_tree import shown, step_tree
from slipstream.completion import Event, SpeculationStep, StepTrace

TRACE = StepTrace(
    position=7,
    token_ids=(5, 6, None),
    parents=(-1, 0, -1),
    log_probs=(-0.105, -0.7, -2.3),
    sources=("ngram", "eagle3", "suffix"),
    accepted=(0,),
    pass_rows=4,
    pass_seconds=0.0042,
    node_texts=(" the", "[bold]cat", ""),
    texts=(" the", " dog\n"),
)


def lines_of(event: Event) -> list[str]:
    console = Console(width=100, color_system=None)
    with console.capture() as written:
        console.print(step_tree(event, 3))
    return [line.rstrip() for line in written.get().splitlines()]


def test_nodes_hang_below_their_parents_and_the_own_token_below_the_accepted_path() -> None:
    step = SpeculationStep(3, 1, "hybrid", trace=TRACE)
    assert lines_of(Event(" the dog\n", (5, 9), step=step)) == [
        "step 3, token 8: 1 of 3 drafted tokens by hybrid accepted, 4.2 ms",
        "├── ␣the 0.90 ngram",
        "│   ├── [bold]cat 0.50 eagle3",
        "│   └── ␣dog\\n",
        "└── (withheld) 0.10 suffix",
    ]


def test_a_plain_step_has_the_own_token_alone() -> None:
    step = SpeculationStep(0, 0, "", trace=StepTrace(0, texts=("Yes",), pass_seconds=0.001))
    assert lines_of(Event("Yes", (4,), step=step))[1:] == ["└── Yes"]
    assert lines_of(Event("Yes", (4,), step=SpeculationStep(0, 0, ""))) == []


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert shown("\x1b[2J\u202e a\t") == "\\x1b[2J\\u202e␣a\\t"
    assert shown("") == "-"
