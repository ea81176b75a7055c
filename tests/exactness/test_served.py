"""Through three real processes the tokens do not depend on proposer, concurrency or engine setting. Bit for bit.

A small version of `python -m benchmarks.exactness`; that one says what is compared on which prompts.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.exactness import cells
from benchmarks.exactness.cells import Count, EngineSetting, total
from benchmarks.lib.continuations import continuation_key, write_continuations
from benchmarks.lib.prompts import load_prompts
from benchmarks.lib.runner import Job, connect
from support.ask import ask, jobs, state
from support.cluster import Cluster

TESTS = Path(__file__).parents[1]
TOKENS = 64
PROPOSERS = (*cells.PROPOSERS, "suffix", "hybrid")
SETTINGS = {
    "as it comes": (EngineSetting(), 256),
    "small chunks, pages of one token, preempted": (EngineSetting(16, 1, True, True), 400),
    "large chunks, pages of 64 tokens, no cache": (EngineSetting(512, 64, False, False), 64),
    "small chunks, pages of 16 tokens, no cache, preempted": (EngineSetting(16, 16, False, True), 36),
}
LONG = {name for name in SETTINGS if "64 tokens" in name or "one token" in name}
EVERY = [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in SETTINGS]


def cluster_of(model, draft_model, engine, pages, oracle=None):
    proposers = (
        ()
        if oracle is None
        else (
            f"draft-model:{draft_model}",
            "ngram",
            "random-tree=support.proposers:random_tree",
            f"oracle=support.proposers:oracle:{oracle}",
            "suffix",
            "hybrid:suffix+ngram+draft-model",
        )
    )
    arguments = (*engine.verify_args(pages), "--draft-deadline-ms", "5000")
    return Cluster(model, draft=proposers, verify_args=arguments, env={"PYTHONPATH": str(TESTS)})


def reference_of(model, work, oracle):
    """Plain answers: one at a time, whole prompts, no prefix cache; also written down for the oracle."""
    with cluster_of(model, None, EngineSetting(4096, 16, False, False), 512) as cluster:
        answers = ask(cluster, work, concurrency=1)
    known = {
        continuation_key(job.prompt_ids, job.temperature, job.seed): answer.token_ids
        for job, answer in zip(work, answers, strict=True)
    }
    write_continuations(oracle, known)
    return answers


def compare(cluster, work, reference, concurrency):
    """Counts by proposer; all proposers share the batches."""
    mixed = [replace(job, proposer="" if name == "none" else name) for job in work for name in PROPOSERS]
    answers = iter(ask(cluster, mixed, concurrency))
    counts = {name: Count() for name in PROPOSERS}
    for index, answer in enumerate(reference):
        for name in PROPOSERS:
            counts[name].add(f"{index}", next(answers), answer)
    for name, count in counts.items():
        print(f"{name}: {count.mismatches} mismatches, drafted {count.drafted}, accepted {count.accepted}")
    return counts


@pytest.fixture(scope="module")
def tiny(tiny_model, tmp_path_factory):
    """Work on the tiny model, its reference answers and the oracle's file."""
    oracle = tmp_path_factory.mktemp("exactness") / "oracle.json"
    work = [
        replace(job, logprobs=3)
        for length in (5, 60, 130)
        for job in jobs(2, tokens=TOKENS, length=length, temperatures=(0.0, 0.8))
    ]
    return work, reference_of(tiny_model, work, oracle), oracle


@pytest.mark.parametrize("name", EVERY)
def test_tokens_and_logprobs_are_the_references(name, tiny_model, tiny_draft_model, tiny):
    engine, pages = SETTINGS[name]
    work, reference, oracle = tiny
    with cluster_of(tiny_model, tiny_draft_model, engine, pages, oracle) as cluster:
        runs = [compare(cluster, work, reference, 8), compare(cluster, work[::4], reference[::4], 1)]
        after = state(cluster)
    assert (after.preemptions > 0) == engine.scarce
    (hybrid,) = [drafter for drafter in after.drafters if drafter.proposer == "hybrid"]
    assert {each.proposer for each in hybrid.sources} <= {"suffix", "ngram", "draft-model"}
    assert sum(each.drafted for each in hybrid.sources) == hybrid.drafted_tokens > 0
    assert sum(each.accepted for each in hybrid.sources) == hybrid.accepted_tokens
    for counts in runs:
        assert sum(count.mismatches + count.logprob_mismatches for count in counts.values()) == 0, counts
        assert all(count.logprobs_compared == count.requests for count in counts.values())
        assert counts["oracle"].accepted > 0
    assert total(counts["oracle"] for counts in runs).acceptance_length > (4 if engine.scarce else 6)
    assert sum(counts["random-tree"].drafted for counts in runs) > 100
    assert sum(counts["suffix"].accepted for counts in runs) > 0
    assert sum(counts["hybrid"].accepted for counts in runs) > 0


def test_shipped_models(demo_model, demo_draft_model, tmp_path):
    prompts = load_prompts(TESTS / "data" / "prompts.jsonl")
    oracle = tmp_path / "oracle.json"

    async def tokenize(cluster):
        async with connect(cluster.gateway_grpc) as runner:
            return await runner.tokenize(prompts)

    write_continuations(oracle, {})
    with cluster_of(demo_model, demo_draft_model, EngineSetting(), 1024, oracle) as cluster:
        ids = asyncio.run(tokenize(cluster))
        work = [Job(each, 48, temperature=t, seed=77, logprobs=2) for each in ids for t in (0.0, 0.8)]
        reference = ask(cluster, work, concurrency=1)
        counts = compare(cluster, work, reference, 8)
    assert sum(count.mismatches + count.logprob_mismatches for count in counts.values()) == 0, counts
    assert counts["draft-model"].acceptance_length > 1.5
    assert counts["ngram"].accepted > 0
    assert counts["suffix"].accepted > 0
    assert counts["hybrid"].acceptance_length > 1.5
