"""A MiMo checkpoint serves, and the layer inside it drafts for it: what the layer knows comes true, token for token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream import Client
from slipstream.completion import SpeculationOptions
from support.cluster import Cluster
from support.models import make_tiny_model
from support.mtp_heads import LAYOUTS, make_oracle, write_mtp

TOKENS = 48
PROMPTS = ("Water boils", "The harbour was quiet at six in the morning")


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """The layer inside the model, in chains and in trees, and three NextN layers of random weights."""
    folder = tmp_path_factory.mktemp("mtp")
    model = make_tiny_model(folder / "mimo", family="mimo", tied=False)
    make_oracle(model)
    write_mtp(model, replace(LAYOUTS["NextN, three layers"], inside=False, own_rows=False), folder / "random")
    wide = f"wide=draft_service.proposers.eagle.mtp:create:{model}:num_steps=4:topk=4:num_draft_tokens=16"
    noise = f"noise=draft_service.proposers.eagle.mtp:create:{folder / 'random'}:target={model}:num_steps=4:topk=2"
    arguments = ("--draft-deadline-ms", "5000")
    with (
        Cluster(model, draft=(f"mtp:{model}:num_steps=4", wide, noise), verify_args=arguments) as cluster,
        Client(cluster.gateway_grpc) as connected,
    ):
        yield connected


@pytest.mark.parametrize("rules", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5, "top_k": 200}])
def test_tokens_are_those_without_drafts_and_drafts_of_a_layer_that_knows_are_accepted(client, rules):
    for prompt in PROMPTS:
        options = {"max_tokens": TOKENS, "ignore_eos": True, **rules}
        plain = client.generate(prompt, speculation=SpeculationOptions(enabled=False), **options)
        for name in ("mtp", "wide", "noise"):
            drafted = client.generate(prompt, speculation=SpeculationOptions(proposer=name), **options)
            assert drafted.token_ids == plain.token_ids
            assert drafted.usage.drafted_tokens > 0
            if name == "mtp":
                assert drafted.usage.accepted_tokens >= 0.9 * drafted.usage.drafted_tokens
            if name != "noise":
                assert drafted.usage.verify_steps < TOKENS / 2
