"""`slipstream serve` from start to drain, on real services."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner

from launcher.cli.app import app
from support.ask import wait_until
from support.serve_process import Served, start


@pytest.fixture(scope="module")
def served(tiny_model, tiny_draft_model, tmp_path_factory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("serve") / "log"
    config = [{"method": "draft_model", "model": str(tiny_draft_model)}, {"method": "ngram"}]
    stats = "--verify-arg=--stats-seconds=0.2"
    served = start(tiny_model, (), log, "--speculative-config", json.dumps(config), stats)
    with served.process:
        yield served
        served.process.terminate()


def complete(served: Served, **changes) -> dict:
    body = {"model": "tiny", "prompt": "The harbour was quiet", "max_tokens": 8, "temperature": 0} | changes
    reply = httpx.post(f"{served.http}/v1/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    return reply.json()


def attached(facts) -> bool:
    return len(facts.verify.proposers) == 2 and all(proposer.attached for proposer in facts.verify.proposers)


def test_it_answers_with_all_proposers_attached(served):
    facts = served.wait_for(attached)
    assert facts.complete
    assert [proposer.name for proposer in facts.verify.proposers if proposer.default] == ["draft-model"]
    assert complete(served)["usage"]["completion_tokens"] == 8


def test_its_log_tells_of_requests_and_throughput_and_a_healthy_start_is_no_warning(served):
    served.wait_for(attached)
    id_ = complete(served)["id"]
    for words in (f'"POST /v1/completions" 200 id={id_} model=tiny', "tokens/s, running "):
        wait_until(lambda words=words: words in served.log.read_text(), served.log.read_text)
    assert " WARNING " not in served.log.read_text().split("ready grpc=")[0]
    assert "is away" not in served.log.read_text()


def test_metrics_of_every_service_are_where_the_greeting_says(served):
    (line,) = (line for line in served.greeting.splitlines() if line.startswith("  metrics"))
    pages = {
        name: httpx.get(url).text for name, url in (each.split() for each in line.split(maxsplit=1)[1].split(", "))
    }
    assert set(pages) == {"gateway", "verify", "draft"}
    assert "slipstream_gateway_requests_total" in pages["gateway"]
    assert "slipstream_steps_total" in pages["verify"]
    assert "slipstream_draft_trees_total" in pages["draft"]


def test_the_greeting_names_a_command_that_runs(served):
    line = next(line for line in served.greeting.splitlines() if " chat --address " in line)
    command = [*shlex.split(line), "--message", "Hello", "--max-tokens", "2"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert run.returncode == 0, run.stderr


def test_info_shows_process_ids_and_attachments_as_json(served):
    served.wait_for(attached)
    command = [sys.executable, "-m", "launcher", "info", "--json", "--verify", served.verify]
    command += ["--gateway", served.http.removeprefix("http://")]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)
    facts = json.loads(run.stdout)
    process_ids = {facts["gateway"]["process_id"], facts["verify"]["process_id"], facts["drafts"][0]["process_id"]}
    assert len(process_ids) == 3
    for process_id in process_ids:
        os.kill(process_id, 0)
    assert {each["process_id"] for each in facts["verify"]["proposers"]} == {facts["drafts"][0]["process_id"]}


def test_a_killed_draft_service_is_started_again_and_attaches(served):
    before = served.wait_for(attached).drafts[0].process_id
    tokens = complete(served, return_token_ids=True)["choices"][0]["token_ids"]
    os.kill(before, signal.SIGKILL)
    assert complete(served, return_token_ids=True)["choices"][0]["token_ids"] == tokens
    after = served.wait_for(lambda facts: attached(facts) and facts.drafts and facts.drafts[0].process_id != before)
    assert after.verify.process_id == served.facts().verify.process_id
    assert complete(served, return_token_ids=True)["choices"][0]["token_ids"] == tokens


def test_taken_ports_are_named(served, tiny_model):
    command = [sys.executable, "-m", "launcher", "serve", "--model", str(tiny_model), "--draft", "none"]
    command += ["--http-port", str(served.ports["http"])]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert run.returncode == 2
    assert "--http-port" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--speculative-config", '{"method": "ngram", "num_steps": 99}'], "num_steps"),
        (["--speculative-config", '{"method": "ngram"}', "--draft", "suffix"], "exclude"),
    ],
)
def test_a_wrong_configuration_of_speculation_is_refused_before_anything_starts(tiny_model, arguments, reason):
    result = CliRunner().invoke(app, ["serve", "--model", str(tiny_model), *arguments])
    assert result.exit_code == 2
    assert reason in result.output


def test_what_ends_a_start_is_said_once(tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (model / "tokenizer.json").write_text("{}")
    ports = [part for name in ("http", "grpc", "verify", "draft") for part in (f"--{name}-port", "0")]
    command = [sys.executable, "-m", "launcher", "serve", "--model", str(model), "--draft", "none", *ports]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    assert run.returncode == 1
    reasons = [line for line in run.stderr.splitlines() if " ERROR " in line]
    assert reasons
    assert len(set(reasons)) == len(reasons)
    assert "gateway exited with status 1 before it was ready; its log is above" in run.stderr
    assert "end of its log" not in run.stderr


def test_sigterm_lets_a_stream_finish_and_leaves_nothing_behind(tiny_model, tmp_path):
    served = start(tiny_model, ("none",), tmp_path / "log", "--drain-seconds", "200")
    with served.process:
        facts = served.facts()
        body = {"model": "tiny", "prompt": "The harbour", "max_tokens": 400, "ignore_eos": True, "stream": True}
        lines = []
        streaming = threading.Event()

        def read() -> None:
            with httpx.stream("POST", f"{served.http}/v1/completions", json=body, timeout=180) as reply:
                for line in reply.iter_lines():
                    lines.append(line)
                    streaming.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert streaming.wait(120)
        served.process.send_signal(signal.SIGTERM)
        reader.join(timeout=180)
        assert served.process.wait(timeout=180) == 0
    assert [line for line in lines if line][-1] == "data: [DONE]"
    assert "draining" in (tmp_path / "log").read_text()
    for process_id in (facts.gateway.process_id, facts.verify.process_id):
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)


def test_a_second_signal_ends_it_at_once(tiny_model, tmp_path):
    log = tmp_path / "log"
    served = start(tiny_model, ("none",), log)
    with served.process:
        process_id = served.facts().verify.process_id
        body = {"model": "tiny", "prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 8, "stream": True}
        with httpx.stream("POST", f"{served.http}/v1/completions", json=body, timeout=180) as reply:
            next(reply.iter_lines())
            os.kill(process_id, signal.SIGSTOP)  # the stream cannot finish
            served.process.send_signal(signal.SIGTERM)
            wait_until(lambda: "draining; again" in log.read_text(), log.read_text)
            assert served.process.poll() is None
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(timeout=180) == 130
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
