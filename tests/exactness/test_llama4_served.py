"""A Llama-4 that sees, its experts in FP8, serves text; a head drafts for it with rows of its folder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slipstream import Client
from slipstream.completion import SpeculationOptions
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from support.cluster import Cluster
from support.eagle_heads import EAGLE3, Shape, write_head
from support.experts import add_vision, part_experts
from support.families import EXPERTS
from support.models import make_tiny_model

TOKENS = 40
PROMPTS = ("Water boils", "The harbour was quiet at six in the morning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight layers, so that there are boundaries to read; chunks of 16 positions."""
    place, form = tmp_path_factory.mktemp("llama4"), EXPERTS["llama4"]
    kinds = {"moe_layers": [0, 2, 3, 4, 6, 7], "no_rope_layers": [1, 1, 0, 1, 1, 1, 0, 1]}
    options = form | {"layers": 8, "intermediate_size": 64, "overrides": form["overrides"] | kinds}
    model = make_tiny_model(place / "model", **options)
    part_experts(model)
    add_vision(model)
    quantise_folder(model, place / "quantised", RoundedFormat("fp8", 32))
    layout = replace(EAGLE3["midlayer, offsets and mask"], draft_vocab=256)
    write_head(place / "head", layout, Shape(hidden=128, intermediate=96, heads=2, kv_heads=1, vocab=512), seed=1)
    return place


def test_tokens_are_those_of_the_model_alone_whoever_drafts(folder):
    model = folder / "quantised"
    alone = CausalLM.load(model)
    draft = ("ngram", f"eagle3:{folder / 'head'}:target={model}:topk=3:num_steps=3")
    with (
        Cluster(model, draft=draft, verify_args=("--draft-deadline-ms", "5000")) as cluster,
        Client(cluster.gateway_grpc) as client,
    ):
        for prompt in PROMPTS:
            options = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.0}
            plain = client.generate(prompt, speculation=SpeculationOptions(enabled=False), **options)
            ids = client.tokenize(prompt)
            cache = alone.new_cache(num_pages=8, page_size=16, scratch_slots=0)
            tokens = ids + list(plain.token_ids)
            logits = alone.forward(cache, RowBatch.chunk(tokens[:-1], 0, list(range(8)), 16))
            assert tuple(np.argmax(logits[len(ids) - 1 :, :512], 1)) == tuple(plain.token_ids)
            for name in ("ngram", "eagle3"):
                drafted = client.generate(prompt, speculation=SpeculationOptions(proposer=name), **options)
                assert drafted.token_ids == plain.token_ids
                assert name == "ngram" or drafted.usage.drafted_tokens > TOKENS
