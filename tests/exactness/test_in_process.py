"""Proposers in the verify service's own process: the same tokens, and the same trees as from a draft service."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from benchmarks.lib.server_process import with_test_modules
from launcher.cli.app import app
from launcher.cli.info import collect
from support.ask import ask, jobs, state, tokens_of, wait_until
from support.cluster import Cluster
from support.serve_process import Served, start

TESTS = Path(__file__).parents[1]
NAMES = ("draft-model", "ngram")
LOCKSTEP = ("--draft-deadline-ms", "10000")


def work_for(proposer: str, **fields):
    return [replace(job, proposer=proposer, **fields) for job in jobs(6, tokens=48)]


@pytest.fixture(scope="module")
def served(tiny_model, tiny_draft_model, tmp_path_factory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("serve") / "log"
    draft = (f"inproc:draft-model:{tiny_draft_model}", "inproc:ngram")
    served = start(tiny_model, draft, log, "--draft-deadline-ms", "5000")
    with served.process:
        yield served
        served.process.terminate()


@pytest.fixture(scope="module")
def plain(served):
    return ask(SimpleNamespace(gateway_grpc=served.grpc), work_for(""))


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_those_of_plain_decoding(served, plain, name):
    answers = ask(SimpleNamespace(gateway_grpc=served.grpc), work_for(name, max_nodes=8))
    assert tokens_of(answers) == tokens_of(plain)
    assert sum(answer.drafted for answer in answers) > 0


def test_they_are_shown_as_attached_in_this_process(served):
    facts = served.facts()
    assert facts.complete
    assert [each.name for each in facts.verify.proposers] == list(NAMES)
    assert [each.default for each in facts.verify.proposers] == [True, False]
    for each in facts.verify.proposers:
        assert (each.attached, each.transport, each.process_id) == (True, "inproc", facts.verify.process_id)
    assert facts.drafts == ()
    assert {(each["proposer"], each["transport"]) for each in facts.verify.drafters} == {(n, "inproc") for n in NAMES}


@pytest.mark.parametrize("place", ["", "inproc:"])
def test_each_proposer_is_shown_on_the_device_that_it_names(tiny_model, place):
    draft = (f"{place}placed=support.proposers:placed:cuda:0", f"{place}ngram")
    with Cluster(tiny_model, draft=draft, gateway=False, env=with_test_modules()) as cluster:
        shown = CliRunner().invoke(app, ["info", "--json", "--verify", cluster.verify_address])
    proposers = json.loads(shown.stdout)["verify"]["proposers"]
    assert {each["name"]: each["device"] for each in proposers} == {"placed": "cuda:0", "ngram": "cpu"}


def test_trees_are_those_of_a_draft_service(tiny_model, tiny_draft_model):
    specs = (f"draft-model:{tiny_draft_model}", "ngram")
    answers = []
    for place in ("", "inproc:"):
        with Cluster(tiny_model, draft=[place + spec for spec in specs], verify_args=LOCKSTEP) as cluster:
            work = [replace(job, temperature=0.0, max_nodes=6, max_depth=4) for name in NAMES for job in work_for(name)]
            answers.append(ask(cluster, work, concurrency=1))
    counted = [[(a.token_ids, a.drafted, a.accepted_by_step) for a in run] for run in answers]
    assert counted[0] == counted[1]
    assert sum(answer.accepted for answer in answers[0]) > 0


def test_a_draft_service_takes_over_and_gives_back(tiny_model):
    with Cluster(tiny_model, draft=("inproc:ngram",), verify_args=LOCKSTEP) as cluster:
        layout = replace(cluster.layout, draft=("ngram",))
        arguments = layout.drafter.arguments
        plain = ask(cluster, work_for(""))

        def transport() -> str:
            facts = collect(cluster.verify_address, cluster.layout.http_address)
            return facts.verify.proposers[0].transport

        assert transport() == "inproc"
        with subprocess.Popen(arguments) as drafter:
            try:
                wait_until(lambda: transport() != "inproc", "the draft service has not attached")
                answers = ask(cluster, work_for("ngram", max_nodes=8))
                newest = max(state(cluster).drafters, key=lambda drafter: drafter.epoch)
                assert (newest.transport == "inproc", newest.drafted_tokens > 0) == (False, True)
            finally:
                drafter.kill()
        wait_until(lambda: transport() == "inproc", "the draft service has not left")
        before = state(cluster).drafters[0].drafted_tokens
        assert tokens_of(answers) == tokens_of(ask(cluster, work_for("ngram", max_nodes=8))) == tokens_of(plain)
        assert state(cluster).drafters[0].drafted_tokens > before


def test_a_third_partys_proposer_is_found_by_its_entry_point(tiny_model, tmp_path):
    package = tmp_path / "third_party-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[slipstream.proposers]\nthirds = support.proposers:random_tree\n")
    env = {"PYTHONPATH": f"{TESTS}:{tmp_path}"}
    with Cluster(tiny_model, draft=("inproc:thirds",), verify_args=LOCKSTEP, env=env) as cluster:
        answers = ask(cluster, work_for("thirds", max_nodes=8))
        assert tokens_of(answers) == tokens_of(ask(cluster, work_for("")))
        assert sum(answer.drafted for answer in answers) > 0


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("nonsense", "no proposer named 'nonsense'"),
        ("ngram:9-2", "prompt_lookup_min must be 1 to prompt_lookup_max"),
        ("draft-model:/nowhere", "/nowhere"),
        ("mine=no_such_module:create", "No module named 'no_such_module'"),
    ],
)
def test_what_cannot_be_run_is_said_at_the_start(tiny_model, forks, spec, reason):
    ended = forks.run("verify_service", "--model", str(tiny_model), "--port", "0", "--inproc", spec)
    assert ended.status == 1
    assert reason in ended.output
    assert "Traceback" not in ended.output
