"""Mixtures of experts in a GPU's passes: their twins against transformers, the kernels against their twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.models.gpu.batch.buckets import bucket_of
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.forward.ops_namespace import kernels
from slipstream_kernels.models.gpu.forward.weights import GpuWeights, weight_bytes
from slipstream_kernels.models.gpu.gpu_model import GpuModel
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.experts.fragment_experts import FragmentExperts
from slipstream_kernels.ops.gpu.experts.packed_experts import PackedExperts
from slipstream_kernels.ops.gpu.gate_up import separate_gate_up
from slipstream_kernels.token_tree import TokenTree
from support.experts import pack_mxfp4
from support.families import EXPERTS
from support.gpu_passes import Span, pass_of
from support.models import make_tiny_model
from tests.kernels.models.gpu.test_families import SIZES, load, logits_of, relative_error

LEAST = {"max_running": 1, "max_nodes": 8, "step_nodes": 7, "prefill_chunk": 16, "num_pages": 3, "max_context": 48}


def on_a_gpu(name: str) -> dict[str, Any]:
    """The form with heads that a GPU takes."""
    return EXPERTS[name] | {"head_dim": 64, "hidden_size": 128}


@pytest.mark.parametrize("name", EXPERTS)
def test_matches_transformers(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **on_a_gpu(name))
    model = load(folder)
    tokens = np.random.default_rng(0).integers(0, 512, 80).tolist()
    pages = [3, 9, 1, 7, 5]
    found = torch.cat([logits_of(model, [Span(1, tokens[a:b], a, pages)]) for a, b in ((0, 50), (50, 51), (51, 80))])
    twin = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = twin(torch.tensor([tokens])).logits[0]
    errors = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert errors.median() < 0.02  # rounding may choose another expert where two are nearly as good
    assert model._weights.nbytes == weight_bytes(model._weights.shard)


@pytest.mark.parametrize("name", ["qwen2_moe", "gpt_oss"])
def test_kernels_agree_with_their_twins(name: str, tmp_path: Path) -> None:
    """A prompt, a row alone and a tree: rows that are grouped by experts and rows that are not."""
    least = on_a_gpu(name) | {"vocab_size": 272, "intermediate_size": 32, "layers": 1, "hidden_size": 64}
    folder = make_tiny_model(tmp_path / "model", **least)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ours, theirs = load(folder, device, ops=kernels(), sizes=LEAST), load(folder, sizes=LEAST)
    tokens = np.random.default_rng(0).integers(0, 272, 14).tolist()
    tree, pages = TokenTree((3, 9, 4), (-1, 0, -1)), [0, 2, 1]
    for span in (Span(0, tokens, 0, pages), Span(0, [9], 14, pages), Span(0, [9], 15, pages, tree)):
        found, expected = (logits_of(model, [span], all_logits=len(span.tree) > 0) for model in (ours, theirs))
        assert torch.isfinite(found).all()
        assert relative_error(found, expected) < 2e-2


def test_a_pass_tells_how_many_experts_it_woke(tmp_path: Path) -> None:
    """Each of each layer once, of the real rows alone."""
    folder = make_tiny_model(tmp_path / "model", **on_a_gpu("qwen3_moe"))
    model, other = load(folder), CausalLM.load(folder)
    experts, tree, pages = model.config.form.experts, TokenTree((3, 9, 4), (-1, 0, -1)), [0, 2, 1]
    each = experts.chosen * sum(experts.layers)
    model.set_pages(0, 0, pages)
    for span, rows in (
        (Span(0, [1, 2, 3], 0, pages), 3),
        (Span(0, [9], 3, pages), 1),
        (Span(0, [9], 4, pages, tree), 4),
    ):
        plan = pass_of(model.limits, [span])
        ticket = model.launch(plan)
        assert ticket.awake == 0
        ticket.results()
        ids = model._pool.of(bucket_of(model._buckets, plan, model._weights.shard)).experts.ids
        met = [set(layer.flatten().tolist()) - {experts.count} for layer in ids]
        assert ticket.awake == sum(map(len, met))
        assert each <= ticket.awake <= rows * each
    cache = other.new_cache(num_pages=3, page_size=16, scratch_slots=0)
    found = []
    for tokens, start in (([1, 2, 3], 0), ([9], 3)):
        other.forward(cache, RowBatch.chunk(tokens, start, pages, 16))
        found.append(other.experts_awake)
    assert each == found[1] <= found[0] <= 3 * each


def test_ranks_share_every_expert(tmp_path: Path) -> None:
    """Parts of the ranks hold the whole; the router is in each as it is."""
    folder = make_tiny_model(tmp_path / "model", **on_a_gpu("mixtral") | {"intermediate_size": 64})
    config = ModelConfig.from_folder(folder)
    weights = GpuWeights.load(folder, config, "cpu", progress=False)
    ranks = [GpuWeights.load(folder, config, "cpu", rank=i, size=2, progress=False) for i in range(2)]
    whole, parts = weights.layers[1].experts, [each.layers[1].experts for each in ranks]
    assert weights.norm_behind_experts(0) is weights.layers[1].input_norm
    assert ranks[0].norm_behind_experts(0) is weights.norm_behind_experts(len(weights.layers) - 1) is None
    assert whole is not None
    assert all(torch.equal(each.router, whole.router) for each in parts)
    assert torch.equal(torch.cat([each.gate_up for each in parts], 1), whole.gate_up)
    assert torch.equal(torch.cat([each.down for each in parts], 2), whole.down)


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_moe"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_quantised_experts_stay_packed(name: str, ranks: int, tmp_path: Path) -> None:
    """What they decode to is what another device loads, on every rank its part."""
    form = on_a_gpu(name) | {"heads": 4, "kv_heads": 2, "intermediate_size": 128}
    form["overrides"] = form["overrides"] | {"moe_intermediate_size": 128}
    folder = make_tiny_model(tmp_path / "model", **form)
    if name == "gpt_oss":
        pack_mxfp4(folder)
    else:
        quantise_folder(folder, tmp_path / "quantised", RoundedFormat("w4a16", 64))
        folder = tmp_path / "quantised"
    config = ModelConfig.from_folder(folder)
    expected = load_tensors(folder, config)
    for rank in range(ranks):
        weights = GpuWeights.load(folder, config, "cpu", rank=rank, size=ranks, progress=False)
        experts = weights.layers[2 if name == "qwen3_moe" else 1].experts
        kind = FragmentExperts if name == "gpt_oss" else PackedExperts
        assert experts is not None and isinstance(experts.gate_up, kind)
        # Half of the inputs of down are one group.
        assert isinstance(experts.down, kind if ranks == 1 else FragmentExperts)
        assert weights.nbytes == weight_bytes(weights.shard)
        prefix = f"model.layers.{2 if name == 'qwen3_moe' else 1}.mlp.experts.1."
        gate, up = separate_gate_up(experts.gate_up.decoded(1)).chunk(2)
        part = slice(rank * len(gate), (rank + 1) * len(gate))
        assert torch.equal(gate, expected[prefix + "gate_proj.weight"][part])
        assert torch.equal(up, expected[prefix + "up_proj.weight"][part])
        assert torch.equal(experts.down.decoded(1), expected[prefix + "down_proj.weight"][:, part])


def test_packed_experts_serve(tmp_path: Path) -> None:
    """As the model that they decode to, by the ops' twins: all but the order of sums is the same."""
    folder = make_tiny_model(tmp_path / "model", **EXPERTS["gpt_oss"])
    pack_mxfp4(folder)
    config = ModelConfig.from_folder(folder)
    span = Span(0, list(range(40)), 0, [0, 7, 3])
    plain = GpuWeights.from_tensors(replace(config, quantisation=None), load_tensors(folder, config).items(), "cpu")
    expected = logits_of(GpuModel.from_weights(plain, GpuLimits(**SIZES)), [span])
    assert torch.equal(logits_of(load(folder), [span]), expected)


@pytest.mark.parametrize(
    ("name", "message"), [("qwen3_moe", "experts is 48"), ("qwen2_moe", "shared_expert_intermediate_size is 80")]
)
def test_what_ranks_cannot_share_is_refused(name: str, message: str, tmp_path: Path) -> None:
    config = ModelConfig.from_folder(make_tiny_model(tmp_path / "model", **on_a_gpu(name)))
    config = replace(config, num_kv_heads=2)
    with pytest.raises(CheckpointError, match=f"{message}, which does not divide among 2 ranks in multiples of 16"):
        Shard(config, 0, 2)
