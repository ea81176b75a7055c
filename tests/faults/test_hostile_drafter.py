"""Malformed, misdirected, missing and late trees: they cost their sender the attachment, and no request anything."""

import time
from dataclasses import replace

import grpc
import pytest

from support.ask import ask, jobs, state, tokens_of, wait_until
from support.cluster import Cluster
from support.hostile import HostileDrafter

DEADLINE_MS = 40
TOKENS = 24
NOISE_SECONDS = 20.0
"""What a busy machine may add to a pause."""

MALFORMED = {
    "cycle": lambda wanted: wanted.tree([5, 6], [1, 0]),
    "own parent": lambda wanted: wanted.tree([5], [0]),
    "parent below -1": lambda wanted: wanted.tree([5], [-2]),
    "parent beyond the nodes": lambda wanted: wanted.tree([5, 6], [-1, 9]),
    "token out of vocabulary": lambda wanted: wanted.tree([wanted.vocab_size], [-1]),
    "huge token": lambda wanted: wanted.tree([2**32 - 1], [-1]),
    "too many nodes": lambda wanted: wanted.tree([5] * wanted.max_nodes, [-1] * wanted.max_nodes),
    "too deep": lambda wanted: wanted.tree([5] * (wanted.max_depth + 1), range(-1, wanted.max_depth)),
    "more tokens than parents": lambda wanted: wanted.tree([5, 6], [-1]),
    "log_probs of another length": lambda wanted: wanted.tree([5, 6], [-1, 0], log_probs=[0.0]),
    "log_prob not a number": lambda wanted: wanted.tree([5], [-1], log_probs=[float("nan")]),
    "unknown source": lambda wanted: wanted.tree([5], [-1], sources=[7]),
}
MISDIRECTED = {
    "epoch": lambda wanted: wanted.tree([5], [-1], stamp=wanted.stamped(epoch=wanted.stamp.epoch + 1)),
    "slot": lambda wanted: wanted.tree([5], [-1], stamp=wanted.stamped(slot=10**6)),
    "generation": lambda wanted: wanted.tree([5], [-1], stamp=wanted.stamped(generation=wanted.stamp.generation + 1)),
    "length": lambda wanted: wanted.tree([5], [-1], stamp=wanted.stamped(base_length=wanted.stamp.base_length - 1)),
    "root": lambda wanted: wanted.tree([5], [-1], stamp=wanted.stamped(root_token=wanted.stamp.root_token ^ 1)),
}


@pytest.fixture(params=["grpc", "shm"])
def transport(request):
    return request.param


@pytest.fixture(scope="module")
def cluster(tiny_model):
    arguments = ("--proposers", "hostile", "--default-proposer", "none", "--draft-deadline-ms", str(DEADLINE_MS))
    with Cluster(tiny_model, verify_args=arguments) as started:
        yield started


@pytest.fixture(scope="module")
def plain(cluster):
    return ask(cluster, jobs(4, tokens=TOKENS))


def hostile(cluster, transport, answer, **fields):
    return HostileDrafter(cluster.verify_address, answer, transport=transport, **fields)


def drafted_jobs(**fields):
    return [replace(job, proposer="hostile", **fields) for job in jobs(4, tokens=TOKENS)]


def ask_until(cluster, plain, reached, **fields):
    """Ask again and again until `reached()`: an answer that a busy machine makes late meets nothing it could harm."""

    def again():
        assert tokens_of(ask(cluster, drafted_jobs(**fields))) == tokens_of(plain)
        return reached()

    wait_until(again, "the drafter was late every time")


@pytest.mark.parametrize("kind", MALFORMED)
def test_malformed_tree_costs_the_sender_its_attachment(cluster, plain, transport, kind):
    before = state(cluster).malformed_records
    with HostileDrafter(
        cluster.verify_address, lambda wanted: [MALFORMED[kind](wanted)], transport=transport
    ) as drafter:
        # A budget below the largest tree, so that one too large or too deep can be sent.
        ask_until(cluster, plain, lambda: drafter.wait_ended(0.5) is not None, max_nodes=8, max_depth=6)
        assert drafter.wait_ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert drafter.wishes > 0
    assert state(cluster).malformed_records == before + 1


@pytest.mark.parametrize("kind", MISDIRECTED)
def test_misdirected_tree_is_dropped_and_counted(cluster, plain, transport, kind):
    before = state(cluster)
    with HostileDrafter(
        cluster.verify_address, lambda wanted: [MISDIRECTED[kind](wanted)], transport=transport
    ) as drafter:
        answers = ask(cluster, drafted_jobs())
        wait_until(lambda: state(cluster).stale_records > before.stale_records, "nothing was dropped")
        assert drafter.status is None
    after = state(cluster)
    assert tokens_of(answers) == tokens_of(plain)
    assert after.malformed_records == before.malformed_records
    assert after.drafted_tokens == before.drafted_tokens


def test_drafter_that_never_answers_delays_by_its_deadline_at_most(cluster, plain, transport):
    before = state(cluster)
    with hostile(cluster, transport, lambda wanted: []) as drafter:
        start = time.monotonic()
        answers = ask(cluster, drafted_jobs())
        seconds = time.monotonic() - start
        assert drafter.status is None
    after = state(cluster)
    assert tokens_of(answers) == tokens_of(plain)
    assert after.draft_misses > before.draft_misses
    assert max(answer.longest_pause for answer in answers) < DEADLINE_MS / 1000 + NOISE_SECONDS
    # Waiting is given up after a few misses: far below one deadline a step.
    waits = after.draft_waits - before.draft_waits
    assert waits < TOKENS / 2
    assert seconds < waits * DEADLINE_MS / 1000 + max(answer.total for answer in plain) + 2 * NOISE_SECONDS


def test_late_trees_are_stale(cluster, plain, transport):
    before = state(cluster)
    delay = 2 * DEADLINE_MS / 1000
    with hostile(cluster, transport, lambda wanted: [wanted.tree([5], [-1])], delay=delay) as drafter:
        answers = ask(cluster, drafted_jobs())
        assert drafter.status is None
    after = state(cluster)
    assert tokens_of(answers) == tokens_of(plain)
    assert after.draft_misses > before.draft_misses
    assert max(answer.longest_pause for answer in answers) < DEADLINE_MS / 1000 + NOISE_SECONDS


def test_wrong_but_well_formed_trees_are_verified_and_refused(cluster, plain, transport):
    before = state(cluster)
    with HostileDrafter(
        cluster.verify_address, lambda wanted: [wanted.tree([1] * 63, [-1] * 63)], transport=transport
    ) as drafter:
        ask_until(cluster, plain, lambda: state(cluster).drafted_tokens > before.drafted_tokens)
        assert drafter.status is None


def test_bytes_that_are_no_message(cluster, plain):
    with grpc.insecure_channel(cluster.verify_address) as channel:
        call = channel.unary_unary("/slipstream.v1.DraftLinkService/Attach")
        with pytest.raises(grpc.RpcError) as raised:
            call(b"\xff\xff\xff", timeout=60)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert tokens_of(ask(cluster, jobs(4, tokens=TOKENS))) == tokens_of(plain)
