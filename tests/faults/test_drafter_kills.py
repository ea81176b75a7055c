"""The drafter is killed again and again while 64 requests stream, and comes back each time."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.drafter_faults.holdings import Holdings, Sample, held
from benchmarks.drafter_faults.traffic import while_doing
from support.ask import ask, jobs, state, tokens_of, wait_until
from support.cluster import Cluster
from support.shared_memory import rings_of

STREAMS = 64
TOKENS = 24
DEADLINE_MS = 5000
"""As long as a busy machine may take to make trees: what is waited for ends with its drafter, too."""
TRANSPORTS = ("grpc", "shm", "grpc", "shm", "shm", "grpc")
"""Of each drafter in turn."""
ACCEPTED = 64
"""Tokens, before each kill."""


@pytest.fixture(scope="module")
def cluster(demo_model, demo_draft_model):
    """The shipped pair: its drafts are accepted."""
    draft = (f"draft-model:{demo_draft_model}",)
    arguments = ("--draft-deadline-ms", str(DEADLINE_MS))
    with Cluster(demo_model, draft=draft, verify_args=arguments, start_draft_now=False) as started:
        yield started


@contextmanager
def drafter(cluster, forks, log: Path, transport: str):
    """A draft service that gets SIGKILL at the end; verify has noticed that afterwards."""
    _, _, module, *arguments = cluster.layout.drafter.arguments
    wait_until(lambda: state(cluster).attachments == 0, "the attachment stayed")
    process = forks.start(log, module, *arguments, "--transports", transport)
    try:
        wait_until(lambda: process in {each.process_id for each in state(cluster).drafters}, log.read_text)
        yield process
    finally:
        os.kill(process, signal.SIGKILL)
    wait_until(lambda: state(cluster).attachments == 0, "the attachment stayed")


def drafting(cluster, former):
    """The verify service's counters once it has accepted trees and the drafter has requests; None until then."""
    found = state(cluster)
    busy = any(each.requests for each in found.drafters)
    return found if busy and found.accepted_tokens >= former + ACCEPTED else None


@pytest.mark.slow
def test_no_request_notices_and_nothing_is_left(cluster, forks, tmp_path):
    requests = jobs(STREAMS, tokens=TOKENS)
    plain = tokens_of(ask(cluster, requests, STREAMS))
    drafted = [replace(job, proposer="draft-model", max_depth=3, max_nodes=4) for job in requests]
    process, log = cluster.processes["verify"].pid, tmp_path / "drafters.log"
    used, accepted, samples = [], [], []

    def kill_one(transport):
        with drafter(cluster, forks, log, transport):
            former, found = state(cluster).accepted_tokens, []
            wait_until(lambda: found.append(drafting(cluster, former)) or found[-1], log.read_text)
            used.append(found[-1].drafters[0].transport)
            accepted.append(found[-1].accepted_tokens - former)
        samples.append(Sample.of(process))

    def kill_all():
        for transport in TRANSPORTS:
            kill_one(transport)

    before = Holdings.of(process)
    traffic = while_doing(cluster.gateway_grpc, drafted, kill_all)
    wait_until(lambda: state(cluster).running == 0, "requests were left behind")
    wait_until(lambda: rings_of(process) == 0, lambda: f"{rings_of(process)} rings stayed")
    found = traffic.compare(plain)
    assert (found["failed"], found["differing"]) == (0, 0), found
    assert found["answers"] >= STREAMS
    assert tuple(used) == TRANSPORTS
    assert min(accepted) > 0
    memory = held(before, samples, Holdings.of(process), drafters=1)
    assert not memory["grown"], memory
