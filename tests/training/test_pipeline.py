"""All stages by their commands, with real services: a head that is made from recorded prompts drafts for its target."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.lib.runner import Job
from support.ask import ask, tokens_of
from support.cluster import Cluster
from support.models import SENTENCES
from training.answers.dataset import AnswerSet
from training.cli import app

READ = "0,1,2"
"""Boundaries of a head for a target of two layers."""
UNHURRIED = ("--draft-deadline-ms", "10000")
"""Trees are waited for, however busy the machine is."""


def stage(*arguments: object) -> None:
    """Run a command; it must succeed."""
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    assert done.exit_code == 0, f"{arguments}: {done.output}\n{done.exception!r}"


@pytest.fixture(scope="module")
def cluster(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory):
    """Services whose drafter is still to be made: its head will be in the folder named here."""
    head = tmp_path_factory.mktemp("pipeline") / "exported"
    draft = f"eagle3:{head}:target={tiny_model}:topk=1:num_steps=3"
    with Cluster(tiny_model, draft=(draft,), start_draft_now=False, verify_args=UNHURRIED) as running:
        yield running, head


def test_from_prompts_to_a_head_in_service(cluster, tiny_model: Path) -> None:
    running, head = cluster
    work, gateway = head.parent, running.gateway_grpc
    (work / "prompts.jsonl").write_text("".join(json.dumps({"prompt": each}) + "\n" for each in SENTENCES))
    stage("prompts", work / "prompts.jsonl", "--out", work / "clean", "--model", tiny_model, "--kinds", "none",
          "--heldout", "0.25", "--workers", "1")  # fmt: skip
    train, answers, features = work / "clean" / "train.jsonl", work / "answers", work / "features"
    stage("answers", train, "--out", answers, "--gateway", gateway, "--temperature", "0", "--max-tokens", "40")
    stage("features", answers, "--model", tiny_model, "--out", features, "--boundaries", f"{READ},3", "--threads", "1")
    stage("fit", "--features", features, "--heldout", features, "--out", work / "run", "--boundaries", READ,
          "--unroll", "3", "--draft-vocab", "256", "--row-length", "96", "--batch-rows", "2", "--epochs", "12",
          "--lr", "3e-3", "--chain", "3", "--device", "cpu")  # fmt: skip
    stage("export", work / "run", "--out", head, "--format", "vllm")
    running.start_draft()
    stage("evaluate", train, "--out", work / "evaluation", "--proposer", "eagle3", "--simulated", work / "run",
          "--gateway", gateway, "--temperatures", "0", "--max-tokens", "40")  # fmt: skip

    cells = json.loads((work / "evaluation" / "acceptance.json").read_bytes())["cells"]
    figures = {cell["proposer"]: cell["categories"]["all"] for cell in cells}
    assert [cell["different_answers"] for cell in cells] == [0, 0]
    assert figures[""]["acceptance_length"] == 1.0
    assert figures["eagle3"]["steps_with_tree"] > 0.8
    # Of texts that it has learnt, a head remembers much, and the engine finds what was found in training, but for the
    # ends of answers, if states, vocabulary and weights are handed over right.
    simulated = json.loads((work / "run" / "metrics.json").read_bytes())["simulated_acceptance_length"]
    assert simulated > 1.5
    assert figures["eagle3"]["acceptance_length"] == pytest.approx(simulated, rel=0.1)

    prompts = [tuple(each.token_ids[:20].tolist()) for each in AnswerSet(answers).sequences()][:4]
    jobs = [
        Job(prompt, 40, temperature=temperature, seed=seed, proposer="eagle3", ignore_eos=True)
        for seed, prompt in enumerate(prompts)
        for temperature in (0.0, 0.8)
    ]
    drafted = ask(running, jobs)
    assert sum(answer.drafted for answer in drafted) > 0
    assert tokens_of(drafted) == tokens_of(ask(running, [replace(job, proposer="") for job in jobs]))
