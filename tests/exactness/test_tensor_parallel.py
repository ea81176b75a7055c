"""What a model shared by two processes answers depends on no tree and no neighbour. Bit for bit."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.exactness.cells import Count
from benchmarks.lib.continuations import continuation_key, write_continuations
from slipstream import Client
from support.ask import ask, jobs
from support.cluster import Cluster
from support.lora_adapters import write_adapter
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


@pytest.mark.slow
def test_adapters_mixed_in_one_batch_change_no_bit_of_another(tmp_path):
    """Beside one another and without, drafted for and not, while a third comes and goes."""
    model = make_tiny_model(tmp_path / "model", heads=4, kv_heads=2)
    folders = {name: write_adapter(tmp_path / name, model, seed=seed) for seed, name in enumerate(("red", "blue"))}
    write_adapter(tmp_path / "allowed" / "green", model, seed=2)
    named = [word for name, folder in folders.items() for word in ("--lora-modules", f"{name}={folder}")]
    work = [
        replace(job, adapter=adapter, logprobs=2) for job in jobs(4, tokens=16, length=30) for adapter in ("", *folders)
    ]
    with Cluster(model, verify_args=(*SHARED, *ALONE, *named), env=ENVIRONMENT) as cluster:
        reference = ask(cluster, work, concurrency=1)
    assert len({answer.token_ids for answer in reference}) == len(work)
    lora = ("--lora-dir", str(tmp_path / "allowed"), "--max-loras", "3")
    drafters = ("random-tree=support.proposers:random_tree", "ngram")
    gateway = ("--allow-lora-updates",)
    done, rounds = threading.Event(), []

    def change(address):
        with Client(address) as client:
            while not done.is_set() or len(rounds) < 3:
                client.load_lora_adapter("green", "green")
                client.unload_lora_adapter("green")
                rounds.append(len(rounds))

    verify = (*SHARED, *BESIDE, *named, *lora)
    with Cluster(model, draft=drafters, verify_args=verify, gateway_args=gateway, env=ENVIRONMENT) as cluster:
        changing = threading.Thread(target=change, args=(cluster.gateway_grpc,))
        changing.start()
        try:
            mixed = [replace(job, proposer=name) for name in ("random-tree", "", "ngram") for job in work]
            answers = ask(cluster, mixed, concurrency=4)
        finally:
            done.set()
            changing.join()
    assert len(rounds) >= 3
    count = Count()
    for answer, wanted in zip(answers, reference * 3, strict=True):
        count.add("", answer, wanted)
    assert count.mismatches + count.logprob_mismatches == 0, count
    assert count.drafted > 100 and sum(answer.cached_tokens for answer in answers) > 0
