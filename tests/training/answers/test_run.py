"""Answers of real services: exact, in order, and the same whatever happens on the way."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from slipstream.client import Client
from support.ask import wait_until
from support.cluster import Cluster, free_ports
from training.answers.asker import GatewayGoneError
from training.answers.dataset import AnswerSet
from training.answers.run import JOURNAL, Gateway, collect_answers
from training.answers.settings import AnswerSettings
from training.common.atomic_files import MismatchError, sole_user

SETTINGS = AnswerSettings(max_tokens=24, seed=5)
QUESTIONS = (
    "What is the capital of Norway?", "Write three sentences about a lighthouse.", "What is 17 plus 25?",
    "Name a colour.", "Tell me a story about a boat.", "How do bees find their way home?",
)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(demo_model):
    with Cluster(demo_model, verify_args=("--max-running", "8")) as running:
        yield running


def write_prompts(path, count=18):
    """Conversations of one to three questions, one of them twice, and a line that is none."""
    lines = []
    for number in range(count):
        messages = [{"role": "system", "content": "Be brief."}] if number % 4 == 0 else []
        for turn in range(1 + number % 3):
            question = f"{QUESTIONS[(number + turn) % len(QUESTIONS)]} ({number})"
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": "Not the target's."}]
        lines.append(json.dumps({"messages": messages, "task": f"task {number % 2}"}))
    path.write_text("\n".join([*lines, lines[3], "{torn"]) + "\n")
    return path


def collect(prompts, folder, address, settings=SETTINGS, concurrency=6, patience=60.0, others=(), **more):
    whom = Gateway(address, concurrency=concurrency, patience=patience, others=others)
    return collect_answers([prompts], folder, whom, settings, progress=False, **more)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return write_prompts(tmp_path_factory.mktemp("prompts") / "prompts.jsonl")


@pytest.fixture(scope="module")
def whole(cluster, prompts, tmp_path_factory):
    """The answers of a run that nothing disturbed, one conversation at a time."""
    folder = tmp_path_factory.mktemp("whole")
    outcome = collect(prompts, folder, cluster.gateway_grpc, concurrency=1)
    assert outcome.answered == 18
    return folder


def test_conversations_are_answered_whole_and_in_order(whole, prompts):
    answers = AnswerSet(whole)
    answers.check()
    asked = [json.loads(line)["messages"] for line in prompts.read_text().splitlines()[:18]]
    last = {record["id"]: record for record in answers.records()}
    assert len(last) == 18
    for messages, record in zip(asked, last.values(), strict=True):
        assert [each["role"] for each in record["messages"]] == [each["role"] for each in messages]
        for mine, given in zip(record["messages"], messages, strict=True):
            assert (mine["content"] == given["content"]) == (given["role"] != "assistant")
    assert answers.index["malformed_lines"] == 1
    summary = answers.index["summary"]
    assert summary["answers"] == sum(1 + number % 3 for number in range(18))
    assert summary["finish_reasons"].keys() <= {"stop", "length"}
    assert summary["completion_tokens"] == sum(int(each.produced.sum()) for each in answers.sequences())


def test_each_span_is_what_the_target_says_to_the_tokens_before_it(whole, cluster):
    with Client(cluster.gateway_grpc) as client:
        spans = 0
        for record in AnswerSet(whole).records():
            for (start, end), turn in zip(record["produced"], record["turns"], strict=True):
                said = client.generate(
                    token_ids=record["token_ids"][:start], max_tokens=24, temperature=0.8, seed=turn["seed"]
                )
                assert list(said.token_ids) == record["token_ids"][start:end]
                spans += 1
        assert spans == 36


def test_the_prompt_is_the_templates(whole, cluster):
    with Client(cluster.gateway_grpc) as client:
        for record in AnswerSet(whole).records():
            rendered = client.tokenize(messages=record["messages"][:-1])
            assert record["token_ids"][: record["produced"][-1][0]] == rendered


def test_concurrency_changes_no_byte_and_seeds_change_all(whole, prompts, cluster, tmp_path):
    collect(prompts, tmp_path / "many", cluster.gateway_grpc, concurrency=12)
    assert contents(tmp_path / "many") == contents(whole)
    collect(prompts, tmp_path / "other", cluster.gateway_grpc, AnswerSettings(max_tokens=24, seed=6))
    theirs = {record["id"]: record["turns"][0]["seed"] for record in AnswerSet(tmp_path / "other").records()}
    for record in AnswerSet(whole).records():
        assert theirs[record["id"]] != record["turns"][0]["seed"]
    assert len(set(theirs.values())) == 18


def test_several_gateways_share_the_prompts_and_give_the_same_bytes(whole, prompts, cluster, tmp_path):
    address = cluster.gateway_grpc
    outcome = collect(prompts, tmp_path / "shared", address, others=(address,), concurrency=3)
    assert (outcome.answered, outcome.tokens) == (18, outcome.index["summary"]["completion_tokens"])
    assert contents(tmp_path / "shared") == contents(whole)
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    with pytest.raises(GatewayGoneError, match=nobody):
        collect(prompts, tmp_path / "half", address, others=(nobody,), patience=0.5)


def start(prompts, folder, address, *more):
    command = [sys.executable, "-m", "training", "answers", str(prompts), "--out", str(folder)]
    command += ["--gateway", address, "--max-tokens", "24", "--seed", "5", "--concurrency", "4", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def journalled(folder):
    journal = folder / JOURNAL
    return journal.read_bytes().count(b"\n") - 1 if journal.exists() else 0


def test_a_run_that_is_killed_goes_on_without_loss_or_duplicates(whole, prompts, cluster, tmp_path):
    folder = tmp_path / "killed"

    def killed(goal):
        process = start(prompts, folder, cluster.gateway_grpc)
        while process.poll() is None and journalled(folder) < goal:
            time.sleep(0.005)
        process.kill()
        process.communicate()
        return process.returncode == -signal.SIGKILL

    def killed_in_time():
        shutil.rmtree(folder, ignore_errors=True)
        return killed(1) and killed(7)

    wait_until(killed_in_time, "the runs were too short for this test")
    kept = journalled(folder)
    assert 7 <= kept < 18
    with (folder / JOURNAL).open("ab") as journal:
        journal.write(b'{"id": "cut by the ki')
    last = start(prompts, folder, cluster.gateway_grpc)
    output, errors = last.communicate(timeout=100)
    assert last.returncode == 0, errors
    assert f"this run: {18 - kept} conversations" in output
    assert contents(folder) == contents(whole)


def test_a_gateway_that_dies_is_waited_for(whole, prompts, cluster, tmp_path):
    folder = tmp_path / "answers"
    outcomes = []

    def waited_for():
        shutil.rmtree(folder, ignore_errors=True)
        run = threading.Thread(
            target=lambda: outcomes.append(collect(prompts, folder, cluster.gateway_grpc, concurrency=2))
        )
        run.start()
        while run.is_alive() and journalled(folder) < 3:
            time.sleep(0.005)
        cluster.kill("gateway")
        cluster.start("gateway")
        cluster.wait_ready()
        run.join(100)
        return outcomes[-1].retries["Unavailable"] > 0

    wait_until(waited_for, "the runs were too short for this test")
    assert contents(folder) == contents(whole)


def test_without_a_gateway_the_run_ends_and_keeps_what_it_has(prompts, tmp_path):
    (nobody,) = free_ports(1)
    with pytest.raises(GatewayGoneError, match="no answer for 0"):
        collect(prompts, tmp_path / "out", f"127.0.0.1:{nobody}", patience=0.5)
    process = start(prompts, tmp_path / "out", f"127.0.0.1:{nobody}", "--patience", "0.5")
    errors = process.communicate(timeout=100)[1]
    assert process.returncode == 1
    assert "start again to go on" in errors


def test_refusals_are_told_and_asked_again_only_when_wanted(cluster, tmp_path):
    late_system = [
        {"role": "user", "content": "Name a colour."},
        {"role": "assistant", "content": "Red."},
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Another."},
    ]
    lines = [{"prompt": "word " * 6000}, {"prompt": "Name a colour."}, {"messages": late_system}]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(map(json.dumps, lines)))
    index = collect(prompts, tmp_path / "out", cluster.gateway_grpc).index
    assert index["summary"]["conversations"] == 2
    assert sum(index["summary"]["failures"].values()) == 1
    assert len(index["summary"]["ended_early"]) == 1
    (failed,) = [json.loads(line) for line in (tmp_path / "out" / "failed.jsonl").read_text().splitlines()]
    assert failed["origin"] == "prompts.jsonl:1"
    assert collect(prompts, tmp_path / "out", cluster.gateway_grpc).answered == 0
    again = collect(prompts, tmp_path / "out", cluster.gateway_grpc, retry_failed=True)
    assert again.answered == 1
    assert again.index == index


def test_a_folder_serves_one_run(whole, prompts, cluster, tmp_path):
    before = contents(whole)
    (whole / JOURNAL).write_text("of a run that was killed once its index was there")
    assert collect(prompts, whole, cluster.gateway_grpc).answered == 0
    assert contents(whole) == before
    with pytest.raises(MismatchError, match="other prompts or settings"):
        collect(prompts, whole, cluster.gateway_grpc, AnswerSettings(seed=99))
    with sole_user(whole), pytest.raises(MismatchError, match="in use"):
        collect(prompts, whole, cluster.gateway_grpc)
