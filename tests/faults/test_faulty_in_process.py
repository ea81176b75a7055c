"""Proposers in the verify service's own process that raise, lie or hang: no token and no request is lost to them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.ask import ask, jobs, state, tokens_of
from support.cluster import Cluster
from support.faulty_proposers import HANGS, KINDS

TESTS = Path(__file__).parents[1]
TOKENS = 24
HARMLESS = ("raises in close", "raises in advance")
"""Faults that do not keep a tree from being made."""


def proposer_of(kind: str) -> str:
    return kind.replace(" ", "-")


def spec(kind: str) -> str:
    return f"inproc:{proposer_of(kind)}=support.faulty_proposers:create:{kind}"


def cluster_of(model, *draft: str) -> Cluster:
    arguments = ("--draft-deadline-ms", "250", "--default-proposer", "none")
    return Cluster(model, draft=draft, verify_args=arguments, env={"PYTHONPATH": str(TESTS)})


@pytest.fixture(scope="module")
def cluster(tiny_model) -> Iterator[Cluster]:
    with cluster_of(tiny_model, *map(spec, KINDS), "inproc:ngram") as started:
        yield started


@pytest.fixture(scope="module")
def plain(cluster):
    return ask(cluster, jobs(4, tokens=TOKENS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_costs_its_requests_their_trees_alone(cluster, plain, kind):
    work = jobs(4, tokens=TOKENS)
    faulty = [replace(job, proposer=proposer_of(kind), max_nodes=4) for job in work]
    sound = [replace(job, proposer="ngram", max_nodes=4) for job in work]
    answers = ask(cluster, [job for pair in zip(faulty, sound, strict=True) for job in pair])
    assert tokens_of(answers[::2]) == tokens_of(answers[1::2]) == tokens_of(plain)
    assert (sum(answer.drafted for answer in answers[::2]) > 0) == (kind in HARMLESS)
    assert sum(answer.drafted for answer in ask(cluster, sound)) > 0
    counters = state(cluster)
    assert counters.malformed_records == 0
    assert len({drafter.epoch for drafter in counters.drafters}) == 1


def test_one_that_hangs_costs_speculation_and_not_the_orderly_end(tiny_model, plain):
    with cluster_of(tiny_model, spec(HANGS)) as cluster:
        work = [replace(job, proposer=HANGS, max_nodes=4) for job in jobs(4, tokens=TOKENS)]
        assert tokens_of(ask(cluster, work)) == tokens_of(plain)
        assert state(cluster).draft_misses > 0
        cluster.kill("verify", signal.SIGTERM)
        assert cluster.processes["verify"].returncode == 0
