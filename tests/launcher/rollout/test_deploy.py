"""A new draft service takes over, or is sent back, while requests run: real services, and not one token differs."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from launcher.cli.app import app
from launcher.rollout import canary
from launcher.rollout.canary import RolloutPlan
from launcher.rollout.deploy import deploy
from launcher.rollout.traffic_shift import ask_info
from launcher.services.pidfd_process import start_to_stay
from launcher.services.readiness import served_folder
from slipstream.client import Client
from slipstream.completion import SpeculationOptions
from slipstream.rpc.channel import open_sync_channel
from support.ask import jobs, state, wait_until
from support.cluster import free_ports
from support.second_draft import PYTHON_PATH, drafters_at

GOOD = "guess=draft_service.proposers.ngram:create"
BAD = "guess=support.proposers:random_tree"
PLAN = RolloutPlan(shares=(0.5,), tokens=300, margin=0.05, confidence=0.99, seconds=60.0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(canary, "POLL_SECONDS", 0.04)
    monkeypatch.setenv("PYTHONPATH", PYTHON_PATH)


@contextmanager
def traffic(cluster):
    """Requests that ask for the proposer all the while; in the end each answer is compared with plain decoding's."""
    asked = jobs(12, tokens=60, temperatures=(0.0,))
    over, wrong, count = threading.Event(), [], itertools.count()
    drafting = SpeculationOptions(enabled=True, proposer="guess", max_depth=4, max_nodes=6)

    def run():
        while not over.is_set():
            turn = next(count) % len(asked)
            if answer(client, asked[turn], drafting) != expected[turn]:
                wrong.append(turn)

    with Client(cluster.gateway_grpc) as client, ThreadPoolExecutor(2) as pool:
        expected = [answer(client, job, SpeculationOptions(enabled=False)) for job in asked]
        running = [pool.submit(run) for _ in range(2)]
        try:
            yield
        finally:
            over.set()
    for each in running:
        each.result()
    assert not wrong


def answer(client, job, speculation):
    """Its tokens."""
    return client.generate(
        token_ids=job.prompt_ids, max_tokens=job.max_tokens, temperature=0, ignore_eos=True, speculation=speculation
    ).token_ids


@contextmanager
def ending(address):
    """What the command has left running is ended."""
    try:
        yield
    finally:
        with open_sync_channel(address) as channel:
            pid = ask_info(address, channel).process_id
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


@contextmanager
def started(cluster, proposer, log):
    """What the command starts: address and process. It drafts for nothing yet."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "draft_service", "--verify", cluster.verify_address, "--port", str(port)]
    with start_to_stay([*command, "--proposers", proposer, "--share", "0"], log) as process:
        try:
            yield f"127.0.0.1:{port}", process
        finally:
            process.signal(signal.SIGKILL)
            os.waitpid(process.pid, 0)


@contextmanager
def serving(cluster, proposer, log):
    """The same, with all requests for its proposer, as nobody else drafts for them."""
    with started(cluster, proposer, log) as (address, process):
        alone = connected(address, PLAN, process)
        assert (alone.verdict, alone.loser) == ("took over", ""), alone.reason
        assert "requests for draft-model, ngram stay where they are" in alone.reason
        assert [drafter.share for drafter in drafters_at(cluster, address)] == [1.0]
        yield address, process


def connected(address, plan, process, tries=5):
    """What comes of it where the services could be reached in time, which a busy machine may take some tries for."""
    for _ in range(tries):
        outcome = deploy(address, plan, own=process, progress=False)
        if "failed to connect" not in outcome.reason:
            break
    return outcome


@pytest.mark.slow
def test_the_better_one_takes_over_and_the_worse_one_is_sent_back(patient_cluster, tmp_path):
    arguments = ["--verify", patient_cluster.verify_address, "--shares", "0.5", "--margin", "0.05"]

    def command(proposer, port, name, tokens):
        more = ["--draft", proposer, "--port", str(port), "--log", str(tmp_path / name), "--tokens", str(tokens)]
        return CliRunner().invoke(app, ["deploy", *arguments, *more])

    ports = free_ports(2)
    better, worse = (f"127.0.0.1:{port}" for port in ports)
    with (
        serving(patient_cluster, BAD, tmp_path / "old") as (old, process),
        ending(better),
        traffic(patient_cluster),
    ):
        result = command(GOOD, ports[0], "better", 300)
        assert result.exit_code == 0, result.output
        assert f"{better} took over" in result.output
        assert f"{old} is stopped" in result.output
        assert not process.running
        assert drafters_at(patient_cluster, better)[0].share == 1.0
        result = command(BAD, ports[1], "worse", 1000)
        assert result.exit_code == 1, result.output
        assert f"{worse} returned: share 0.5" in result.output
        assert f"{worse} is stopped" in result.output
        assert drafters_at(patient_cluster, worse) == []
        before = drafters_at(patient_cluster, better)[0].hits
        wait_until(lambda: drafters_at(patient_cluster, better)[0].hits > before, "the better one drafts no more")


def test_one_that_nobody_asks_or_that_dies_gives_its_requests_back(patient_cluster, tmp_path):
    with (
        serving(patient_cluster, GOOD, tmp_path / "old") as (old, _),
        started(patient_cluster, GOOD, tmp_path / "log") as (address, process),
    ):
        quiet = deploy(address, replace(PLAN, seconds=0.3, stop_loser=False), own=process, progress=False)
        assert quiet.verdict == "returned"
        assert "only 0 tokens" in quiet.reason
        assert process.running
        assert drafters_at(patient_cluster, address)[0].share == 0.0

        def kill():
            wait_until(lambda: drafters_at(patient_cluster, address)[0].hits > 20, "it drafts nothing")
            process.signal(signal.SIGKILL)

        with traffic(patient_cluster), ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill)
            outcome = deploy(address, replace(PLAN, tokens=10**7), own=process, progress=False)
            killing.result()
            before = drafters_at(patient_cluster, old)[0].hits
            wait_until(lambda: drafters_at(patient_cluster, old)[0].hits > before, "nobody drafts any more")
        assert outcome.verdict == "returned"
        assert outcome.reason in (f"{address} ended", f"{address} lost its attachment")
        assert drafters_at(patient_cluster, address) == []


def test_heads_are_lent_the_model_that_is_served(patient_cluster, tiny_model):
    assert served_folder(patient_cluster.verify_address, timeout=60.0) == tiny_model
    (nobody,) = free_ports(1)
    assert served_folder(f"127.0.0.1:{nobody}") is None


def test_one_that_does_not_attach_is_ended(patient_cluster, tmp_path):
    before = [each.epoch for each in state(patient_cluster).drafters]
    with started(patient_cluster, "guess=support.nowhere:create", tmp_path / "log") as (address, process):
        outcome = deploy(address, PLAN, own=process, progress=False)
        assert (outcome.verdict, outcome.reason) == ("returned", f"{address} ended before it was attached")
    with started(patient_cluster, GOOD, tmp_path / "log") as (address, process):
        outcome = deploy(address, replace(PLAN, attach_seconds=0.0), own=process, progress=False)
        assert (outcome.verdict, outcome.reason) == ("returned", f"{address} was not attached in time")
        assert not process.running
    assert [each.epoch for each in state(patient_cluster).drafters] == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--draft"),
        (["127.0.0.1:1", "--draft", "ngram"], "--draft"),
        (["127.0.0.1:1", "--shares", "0.1,1"], "--shares"),
    ],
)
def test_wrong_arguments_are_refused(arguments, told):
    result = CliRunner().invoke(app, ["deploy", *arguments])
    assert result.exit_code == 2
    assert told in result.output
