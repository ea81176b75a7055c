"""The command: figures and report in one folder, written anew without asking again."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from training.cli import app


def evaluate(*arguments):
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    return result.exit_code, result.output


def test_a_run_leaves_figures_and_a_report_that_can_be_written_again(tiny_cluster, tmp_path):
    prompts, out, metrics = tmp_path / "heldout.jsonl", tmp_path / "out", tmp_path / "metrics.json"
    prompts.write_text('{"prompt": "Name a colour.", "category": "colours"}\n')
    metrics.write_text(json.dumps({"simulated_acceptance_length": 2.5}))
    asked = [prompts, "--out", out, "--proposer", "draft-model", "--temperatures", "0", "--max-tokens", "8"]
    status, text = evaluate(*asked, "--gateway", tiny_cluster.gateway_grpc)
    assert status == 0, text
    assert "draft-model, T = 0" in text
    figures = (out / "acceptance.json").read_bytes()
    report = (out / "report.html").read_text()
    status, text = evaluate(*asked, "--gateway", "127.0.0.1:1", "--simulated", metrics)
    assert status == 0, text
    assert "The simulated figure, 2.50, is that of a chain" in text
    assert (out / "acceptance.json").read_bytes() == figures
    assert (out / "report.html").read_text() != report


def test_wrong_arguments_are_refused(tmp_path):
    for more in (["--temperatures", "0,3"], ["--temperatures", "x"], ["--proposer", "one"], ["--simulated", tmp_path]):
        arguments = [tmp_path, "--out", tmp_path / "out", "--proposer", "one", *more]
        assert evaluate(*arguments)[0] == 2
