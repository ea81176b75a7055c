"""Figures of the real engine: those that its own counters give, the same however often the run was interrupted."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from copy import deepcopy

import pytest

from benchmarks.lib.runner import Job
from slipstream.client import Client
from slipstream.rpc.errors import NotFoundError
from support.ask import ask, wait_until
from support.cluster import free_ports
from training.answers.asker import GatewayGoneError
from training.answers.run import Gateway
from training.common.atomic_files import MismatchError
from training.evaluate import run
from training.evaluate.probe import repeats
from training.evaluate.run import ALL, FRESH, JOURNAL, NO_CATEGORY, measure_acceptance, read_result, select
from training.evaluate.settings import AcceptanceSettings, Cell
from training.prompts.records import Prompt, Turn

TEXTS = ("What is rain?", "Name a colour.", "Tell me about bees.", "Who was first?")
SETTINGS = AcceptanceSettings(("draft-model", "ngram"), max_tokens=20, seed=3)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "heldout.jsonl"
    records = [{"prompt": text, "category": f"kind {number % 2}"} for number, text in enumerate(TEXTS)]
    refused = {"messages": [{"role": "user", "content": "word " * 600}]}
    path.write_text("".join(json.dumps(record) + "\n" for record in [*records, refused, {"prompt": "Why?"}]))
    return path


def measure(prompts, folder, cluster, settings=SETTINGS):
    return measure_acceptance([prompts], folder, Gateway(cluster.gateway_grpc, "", 3, 60.0), settings, progress=False)


@pytest.fixture(scope="module")
def result(patient_cluster, prompts, tmp_path_factory):
    return measure(prompts, tmp_path_factory.mktemp("whole"), patient_cluster)


def cell_of(result, proposer, temperature):
    found = [each for each in result["cells"] if (each["proposer"], each["temperature"]) == (proposer, temperature)]
    assert len(found) == 1
    return found[0]


def test_the_figures_are_those_of_the_same_requests_counted_by_others(patient_cluster, result):
    with Client(patient_cluster.gateway_grpc) as client:
        ids = [client.tokenize(messages=[{"role": "user", "content": text}]) for text in (*TEXTS, "Why?")]
    prompts = [Prompt((Turn("user", text),), "") for text in (*TEXTS, "Why?")]
    for proposer in ("draft-model", "ngram"):
        for temperature in (0.0, 0.8):
            seeds = [SETTINGS.answers(Cell(proposer, temperature)).seed_of(prompt.key, 0) for prompt in prompts]
            jobs = [
                Job(tuple(each), SETTINGS.max_tokens, temperature=temperature, seed=seed, proposer=proposer)
                for each, seed in zip(ids, seeds, strict=True)
            ]
            answers = ask(patient_cluster, jobs)
            figures = cell_of(result, proposer, temperature)["categories"][ALL]
            assert figures["conversations"] == len(prompts)
            assert figures["decoded_tokens"] == sum(answer.decoded for answer in answers)
            length = sum(each.decoded for each in answers) / sum(each.decode_steps for each in answers)
            assert figures["acceptance_length"] == pytest.approx(length, rel=0.15)
            accepted = sum(figures["accepted_by_position"]) * figures["tree_steps"]
            assert figures["decode_steps"] + round(accepted) == figures["decoded_tokens"]


def test_cells_differ_in_nothing_but_speed(result):
    assert [cell["different_answers"] for cell in result["cells"]] == [0] * 6
    plain = cell_of(result, "", 0.0)["categories"]
    assert plain[ALL]["acceptance_length"] == 1.0
    assert plain[ALL]["accepted_by_position"] == []
    assert list(plain)[:4] == ["kind 0", "kind 1", NO_CATEGORY, ALL]
    assert plain["kind 0"]["conversations"] == plain["kind 1"]["conversations"] == 2
    fresh = plain.get(FRESH, {"conversations": 0})["conversations"]
    assert fresh == plain[ALL]["answers"] - plain[ALL]["repeating_answers"]
    assert sum(result["failures"].values()) == 1


def without_times(result):
    for cell in result["cells"]:
        for figures in cell["categories"].values():
            figures.pop("seconds_per_token")
    return result


def test_an_interrupted_run_goes_on_where_it_stood(patient_cluster, prompts, tmp_path, monkeypatch):
    settings = AcceptanceSettings(("ngram",), plain=False, temperatures=(0.0,), max_tokens=6)
    whole = measure(prompts, tmp_path / "whole", patient_cluster, settings)
    asked = []
    measured = run.Probe.measure

    async def broken(self, prompt, cell):
        asked.append(prompt.key)
        if len(asked) == 4:
            raise ZeroDivisionError
        return await measured(self, prompt, cell)

    monkeypatch.setattr(run.Probe, "measure", broken)
    with pytest.raises(ZeroDivisionError):
        measure(prompts, tmp_path / "cut", patient_cluster, settings)
    kept = len((tmp_path / "cut" / JOURNAL).read_text().splitlines()) - 1
    assert 1 <= kept <= 3
    assert read_result(tmp_path / "cut") is None
    asked.clear()
    monkeypatch.setattr(run.Probe, "measure", lambda *args: asked.append(args) or measured(*args))
    again = measure(prompts, tmp_path / "cut", patient_cluster, settings)
    assert len(asked) == 6 - kept
    assert without_times(again) == without_times(whole)
    assert not (tmp_path / "cut" / JOURNAL).exists()
    (tmp_path / "cut" / JOURNAL).write_text("of a run that was killed once its figures were there")
    assert measure(prompts, tmp_path / "cut", patient_cluster, settings) == read_result(tmp_path / "cut")
    assert not (tmp_path / "cut" / JOURNAL).exists()
    with pytest.raises(MismatchError):
        measure(prompts, tmp_path / "cut", patient_cluster)


def start(prompts, folder, address):
    command = [sys.executable, "-m", "training", "evaluate", str(prompts), "--out", str(folder), "--gateway", address]
    command += ["--proposer", "draft-model", "--proposer", "ngram", "--max-tokens", "20", "--seed", "3"]
    command += ["--concurrency", "1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def journalled(folder):
    journal = folder / JOURNAL
    return journal.read_bytes().count(b"\n") - 1 if journal.exists() else 0


def test_a_run_that_is_killed_goes_on_without_loss_or_duplicates(patient_cluster, prompts, result, tmp_path):
    folder = tmp_path / "killed"

    def killed_in_time():
        shutil.rmtree(folder, ignore_errors=True)
        process = start(prompts, folder, patient_cluster.gateway_grpc)
        while process.poll() is None and journalled(folder) < 8:
            time.sleep(0.005)
        process.kill()
        process.communicate()
        return process.returncode == -signal.SIGKILL

    wait_until(killed_in_time, "the runs were too short for this test")
    assert 8 <= journalled(folder) < 36
    with (folder / JOURNAL).open("ab") as journal:
        journal.write(b'{"id": "cut by the ki')
    last = start(prompts, folder, patient_cluster.gateway_grpc)
    errors = last.communicate(timeout=100)[1]
    assert last.returncode == 0, errors
    assert without_times(read_result(folder)) == without_times(deepcopy(result))


def test_what_cannot_be_measured_is_said(patient_cluster, prompts, tmp_path):
    with pytest.raises(NotFoundError, match=r"no proposer eagle3; it knows: .*ngram"):
        measure(prompts, tmp_path / "one", patient_cluster, AcceptanceSettings(("eagle3", "ngram")))
    (nobody,) = free_ports(1)
    with pytest.raises(GatewayGoneError):
        measure_acceptance(
            [prompts], tmp_path / "two", Gateway(f"127.0.0.1:{nobody}", patience=0.3), SETTINGS, progress=False
        )
    empty = tmp_path / "empty.jsonl"
    empty.write_text("{}\n")
    with pytest.raises(ValueError, match="no prompt"):
        measure(empty, tmp_path / "three", patient_cluster)


def test_a_limit_is_spread_over_the_categories():
    prompts = [Prompt((Turn("user", str(number)),), "", "few" if number < 2 else "many") for number in range(20)]
    chosen = select(prompts, 6)
    assert [prompt.category for prompt in chosen] == ["few"] * 2 + ["many"] * 4
    assert select(prompts[::-1], 6) == chosen[::-1]
    assert select(prompts, None) == prompts


def test_a_repetition_is_a_run_that_occurs_twice():
    once = [*range(15), 99, *range(15)]
    assert not repeats(once)
    assert repeats([*range(16), 99, *range(16)])
