"""What a model shared by two processes answers depends on no tree and no neighbour. Bit for bit."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.exactness.cells import Count
from benchmarks.lib.continuations import continuation_key, write_continuations
from support.ask import ask, jobs
from support.cluster import Cluster
from support.models import make_tiny_model

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": str(TESTS)}
SHARED = ("--tensor-parallel-size", "2", "--max-running", "4", "--max-nodes", "12", "--step-nodes", "33",
          "--num-pages", "80", "--no-adaptive", "--draft-deadline-ms", "5000")  # fmt: skip
ALONE = ("--prefill-chunk", "128", "--no-prefix-cache")
BESIDE = ("--prefill-chunk", "16", "--page-size", "8")
PROPOSERS = ("", "random-tree", "oracle")


@pytest.mark.slow
def test_tokens_and_logprobs_are_those_of_a_plain_run_of_the_same_size(tmp_path):
    model = make_tiny_model(tmp_path / "model", heads=4, kv_heads=2)
    oracle = tmp_path / "oracle.json"
    work = [
        replace(job, logprobs=2)
        for length in (9, 70)
        for job in jobs(2, tokens=16, length=length, temperatures=(0.0, 0.8))
    ]
    with Cluster(model, verify_args=(*SHARED, *ALONE), env=ENVIRONMENT) as cluster:
        reference = ask(cluster, work, concurrency=1)
        log = cluster.logs("verify")
    assert "rank 1" not in log
    assert cluster.processes["verify"].returncode == 0
    known = {
        continuation_key(job.prompt_ids, job.temperature, job.seed): answer.token_ids
        for job, answer in zip(work, reference, strict=True)
    }
    write_continuations(oracle, known)
    drafters = ("random-tree=support.proposers:random_tree", f"oracle=support.proposers:oracle:{oracle}")
    with Cluster(model, draft=drafters, verify_args=(*SHARED, *BESIDE), env=ENVIRONMENT) as cluster:
        mixed = [replace(job, proposer=name) for job in [*work, *work[:2]] for name in PROPOSERS]
        answers = ask(cluster, mixed, concurrency=4)
    counts = {name: Count() for name in PROPOSERS}
    expected = [answer for answer in [*reference, *reference[:2]] for _ in PROPOSERS]
    for job, answer, wanted in zip(mixed, answers, expected, strict=True):
        counts[job.proposer].add("", answer, wanted)
    assert sum(count.mismatches + count.logprob_mismatches for count in counts.values()) == 0, counts
    assert counts["random-tree"].drafted > 100
    assert counts["oracle"].accepted > 40
    assert sum(answer.cached_tokens for answer in answers) > 0
