"""`slipstream serve` with a proposer in both places, and a draft model that does not fit the target."""

from __future__ import annotations

import json
import os
import signal

import httpx
from typer.testing import CliRunner

from launcher.cli.app import app
from support.serve_process import start


def transport_of_ngram(facts):
    return next(each.transport for each in facts.verify.proposers if each.name == "ngram")


def test_a_misfit_is_named_wherever_operators_look_and_costs_speed_alone(tiny_model, demo_draft_model, tmp_path):
    draft = ("inproc:ngram", f"draft-model:{demo_draft_model}", "ngram")
    served = start(tiny_model, draft, tmp_path / "log")
    with served.process:
        try:
            assert "proposers  ngram (default), draft-model (not attached)" in served.greeting
            assert "the draft service's draft-model is not attached: " in served.greeting

            gateway = served.http.removeprefix("http://")
            shown = CliRunner().invoke(app, ["info", "--json", "--verify", served.verify, "--gateway", gateway])
            assert shown.exit_code == 1
            facts = json.loads(shown.stdout)
            (refusal,) = facts["verify"]["refusals"]
            assert refusal["proposer"] == "draft-model"
            assert refusal["process_id"] == facts["drafts"][0]["process_id"]
            reason = refusal["reason"]
            assert "tokenizer" in reason or "vocab" in reason

            ready = httpx.get(f"{served.http}/ready", timeout=60)
            assert ready.status_code == 200
            missing = {each["proposer"]: each["reason"] for each in ready.json()["missing_proposers"]}
            assert missing == {"draft-model": reason}

            assert transport_of_ngram(served.facts()) == "shm", "the draft service's takes the requests"
            os.kill(refusal["process_id"], signal.SIGTERM)
            served.wait_for(lambda facts: transport_of_ngram(facts) == "inproc")
        finally:
            served.process.terminate()
    log = (tmp_path / "log").read_text()
    assert log.count(reason) == log.count("not offered, as they do not fit the model") == 1
