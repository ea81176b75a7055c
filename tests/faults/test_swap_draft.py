"""Draft services change under load: no request fails, no token differs, and the counters show who drafts."""

import random
from dataclasses import replace

import pytest

from launcher.rollout.traffic_shift import SwapError, swap
from support.ask import ask, ask_while, jobs, state, tokens_of, wait_until
from support.cluster import Cluster
from support.second_draft import PYTHON_PATH, draft_service, drafters_at

STREAMS = 6
TOKENS = 450
OLD = "guess=support.proposers:random_tree"


@pytest.fixture(scope="module", params=["shm", pytest.param("grpc", marks=pytest.mark.slow)])
def cluster(request, demo_model):
    """A target slow enough that streams outlast a swap; the first draft service is bad at guessing."""
    arguments = ("--draft-deadline-ms", "2000", "--transports", request.param)
    env = {"PYTHONPATH": PYTHON_PATH}
    draft_args = ("--max-nodes", "4", "--max-depth", "3")
    with Cluster(demo_model, draft=(OLD,), verify_args=arguments, draft_args=draft_args, env=env) as started:
        yield started


@pytest.fixture(scope="module")
def plain(cluster):
    return tokens_of(ask(cluster, jobs(STREAMS, tokens=TOKENS)))


def drafted_jobs():
    return [replace(job, proposer="guess", max_depth=3, max_nodes=4) for job in jobs(STREAMS, tokens=TOKENS)]


def good(demo_draft_model):
    return f"guess=draft_service.proposers.draft_model:create:{demo_draft_model}"


def rate(drafters):
    """Accepted tokens of a tree."""
    return sum(d.accepted_tokens for d in drafters) / max(1, sum(d.hits for d in drafters))


def test_a_new_draft_service_takes_over_under_load(cluster, plain, demo_draft_model):
    def swapped():
        wait_until(lambda: state(cluster).running == STREAMS, "never ran")
        (idle,) = drafters_at(cluster, newer)
        assert (idle.share, idle.requests) == (0, 0)
        done = swap(newer, "", share=1.0, seconds=120)
        assert done.former == {cluster.draft_address: 0}
        start = drafters_at(cluster, newer)[0].drafted_tokens
        wait_until(lambda: drafters_at(cluster, newer)[0].drafted_tokens > start + 150, "drafts nothing")
        wait_until(lambda: drafters_at(cluster, newer)[0].requests == STREAMS, "requests are elsewhere")
        assert sum(drafter.requests for drafter in drafters_at(cluster, cluster.draft_address)) == 0

    with draft_service(cluster, good(demo_draft_model), arguments=("--share", "0", "--topk", "1")) as service:
        newer = service.command.address
        answers = ask_while(cluster, drafted_jobs(), swapped)
        assert rate(drafters_at(cluster, newer)) > rate(drafters_at(cluster, cluster.draft_address))
    for tokens, each in zip(plain, answers, strict=True):
        assert tokens_of(each) == [tokens] * len(each)
        assert all(answer.finish_reason == "FINISH_REASON_LENGTH" for answer in each)


def test_a_canary_gets_its_share_and_keeps_it(cluster, demo_draft_model):
    draw = random.Random(5)
    short = [
        replace(job, prompt_ids=tuple(draw.randrange(10, 400) for _ in range(12)), max_tokens=12, seed=seed)
        for seed, job in enumerate(drafted_jobs()[:1] * 60)
    ]

    def served_by_canary(address):
        return next(drafter.hits + drafter.misses for drafter in drafters_at(cluster, address))

    with draft_service(cluster, good(demo_draft_model), arguments=("--share", "0.3")) as canary:
        chosen = []
        for job in short:
            before = served_by_canary(canary.command.address)
            ask(cluster, [job])
            chosen.append(served_by_canary(canary.command.address) > before)
        assert 0.1 < sum(chosen) / len(short) < 0.5
        for job, was in list(zip(short, chosen, strict=True))[:10]:
            before = served_by_canary(canary.command.address)
            ask(cluster, [job])
            assert (served_by_canary(canary.command.address) > before) == was


def test_what_cannot_be_swapped_is_said(cluster):
    with pytest.raises(SwapError):
        swap(cluster.verify_address, "", share=1.0, seconds=1)
    with pytest.raises(SwapError):
        swap("127.0.0.1:1", "", share=1.0, seconds=1)
    with pytest.raises(SwapError):
        swap(cluster.draft_address, "", share=1.5, seconds=1)
    assert swap(cluster.draft_address, "", share=1.0, seconds=120).done
