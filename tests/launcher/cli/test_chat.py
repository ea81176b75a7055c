"""`slipstream chat` in a process of its own, against real services."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from launcher.cli.chat import COLOURS, colour, legend
from slipstream.completion import Event, SpeculationStep


def run_chat(address: str, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", "chat", "--address", address, "--max-tokens", "12"]
    return subprocess.run(
        [*command, "--temperature", "0", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env={**os.environ, "FORCE_COLOR": "1"},
    )


def test_one_question_is_answered_with_its_figures(tiny_cluster):
    run = run_chat(tiny_cluster.gateway_grpc, "--message", "Hello")
    assert run.returncode == 0, run.stderr
    assert " tokens a step)" in run.stdout
    assert "\x1b[" in run.stdout


def test_a_conversation_goes_on_until_the_end_of_input(tiny_cluster):
    run = run_chat(tiny_cluster.gateway_grpc, "--system", "Be brief.", typed="Hello\n\n/reset\nAgain\n")
    assert run.returncode == 0, run.stderr
    assert run.stdout.count(" tokens a step)") == 2
    assert "accepted drafted tokens of a step" in run.stdout


def test_answers_fit_the_schema_of_a_file(tiny_cluster, tmp_path):
    file = tmp_path / "schema.json"
    file.write_text('{"enum": ["Oslo"]}', "utf-8")
    run = run_chat(tiny_cluster.gateway_grpc, "--message", "Hello", "--schema", str(file))
    assert run.returncode == 0, run.stderr
    assert "".join(re.split(r"\x1b\[[0-9;]*m", run.stdout)).startswith('"Oslo"')


def test_errors_are_one_line_and_a_status(tiny_cluster):
    run = run_chat(tiny_cluster.gateway_grpc, "--message", "Hello", "--proposer", "unheard-of")
    assert run.returncode == 1
    assert "InvalidArgumentError" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(("accepted", "index"), [(0, 0), (1, 1), (4, 4), (30, 4)])
def test_colours_follow_the_accepted_tokens(accepted, index):
    event = Event(text="a", token_ids=(1,), step=SpeculationStep(drafted=31, accepted=accepted, proposer="ngram"))
    assert colour(event) == COLOURS[index]
    assert colour(Event(text="a", token_ids=(1,))) == COLOURS[0]


def test_the_legend_has_every_colour():
    assert [span.style for span in legend().spans] == list(COLOURS)


def test_trees_of_the_steps_are_shown(tiny_cluster):
    run = run_chat(tiny_cluster.gateway_grpc, "--message", "Hello hello hello", "--proposer", "ngram", "--tree")
    assert run.returncode == 0, run.stderr
    assert "step 1, token 1" in run.stdout
    assert "drafted tokens" in run.stdout
