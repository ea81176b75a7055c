"""The draft service, the verify service and the gateway as processes: guesses of the target's own weights come true."""

from __future__ import annotations

import pytest

from launcher.cli.info import collect
from launcher.rollout.traffic_shift import swap
from slipstream import Client
from slipstream.completion import SpeculationOptions
from support.cluster import Cluster

TOKENS = 60
PROMPTS = ["Water boils", "for index, value in", "The harbour was quiet at six"]


@pytest.fixture(scope="module")
def cluster(tiny_model, tmp_path_factory):
    """The target drafts for itself, in chains of 4; the long deadline keeps a busy machine out of the result.

    The services reach one another through files alone.
    """
    with Cluster(
        tiny_model,
        draft=(f"draft-model:{tiny_model}", "ngram"),
        verify_args=("--draft-deadline-ms", "5000"),
        draft_args=("--max-depth", "4", "--topk", "1"),
        sockets=tmp_path_factory.mktemp("sockets"),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(cluster):
    with Client(cluster.gateway_grpc) as connected:
        yield connected


@pytest.mark.parametrize(
    "rules",
    [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 0.7, "seed": 6, "top_p": 0.9, "top_k": 40, "presence_penalty": 0.5, "repetition_penalty": 1.2},
    ],
)
def test_guesses_of_the_targets_own_weights_are_accepted(client, rules) -> None:
    for prompt in PROMPTS:
        options = {"max_tokens": TOKENS, "ignore_eos": True, **rules}
        plain = client.generate(prompt, speculation=SpeculationOptions(enabled=False), **options)
        drafted = client.generate(prompt, speculation=SpeculationOptions(proposer="draft-model"), **options)
        assert drafted.token_ids == plain.token_ids
        assert drafted.usage.accepted_tokens >= 0.9 * drafted.usage.drafted_tokens > 0
        assert drafted.usage.verify_steps < TOKENS / 3


def test_a_text_that_repeats_itself_is_looked_up(client) -> None:
    options = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.0, "logit_bias": {40: 100.0}}
    plain = client.generate("again and again", speculation=SpeculationOptions(enabled=False), **options)
    drafted = client.generate("again and again", speculation=SpeculationOptions(proposer="ngram"), **options)
    assert drafted.token_ids == plain.token_ids
    assert drafted.usage.verify_steps < TOKENS / 3


def test_everything_is_found_at_its_unix_socket(cluster) -> None:
    facts = collect(cluster.verify_address, cluster.layout.http_address)
    assert facts.complete
    assert facts.gateway.process_id == cluster.processes["gateway"].pid
    assert [draft.address for draft in facts.drafts] == [cluster.draft_address]
    assert {proposer.transport for proposer in facts.verify.proposers} == {"shm"}
    assert swap(cluster.draft_address, "", share=1.0, seconds=60).done
