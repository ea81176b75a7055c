"""Mixtures of experts on the CPU: against transformers, and against themselves in chunks, batches and trees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from slipstream_kernels.models.checkpoint.model_config import CheckpointError, ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors, load_weights
from slipstream_kernels.models.cpu.backend import CpuBackend
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.invariance import probe_row_invariance
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from support.experts import fuse_experts, pack_mxfp4
from support.families import EXPERTS
from support.models import make_tiny_model

TOKENS = np.random.default_rng(0).integers(0, 512, 110).tolist()


def logits_in_chunks(model: CausalLM, ends: tuple[int, ...], page_size: int = 16) -> np.ndarray:
    count = -(-ends[-1] // page_size)
    cache = model.new_cache(num_pages=count, page_size=page_size, scratch_slots=0)
    starts = (0, *ends[:-1])
    return np.concatenate([
        model.forward(cache, RowBatch.chunk(TOKENS[start:end], start, list(range(count)), page_size))
        for start, end in zip(starts, ends, strict=True)
    ])  # fmt: skip


@pytest.mark.parametrize("name", EXPERTS)
def test_matches_transformers(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **EXPERTS[name])
    found = logits_in_chunks(CausalLM.load(folder), (70, 71, 110))
    twin = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = twin(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.array_equal(found.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe"])
def test_fused_experts_are_the_same(name: str, tmp_path: Path) -> None:
    """Bit for bit."""
    folder = make_tiny_model(tmp_path / "model", **EXPERTS[name])
    expected = logits_in_chunks(CausalLM.load(folder), (30,))
    fuse_experts(folder)
    assert np.array_equal(logits_in_chunks(CausalLM.load(folder), (30,)), expected)


def test_experts_in_mxfp4_are_those_that_they_decode_to(tmp_path: Path) -> None:
    """Bit for bit, one row and many."""
    packed = make_tiny_model(tmp_path / "packed", **EXPERTS["gpt_oss"])
    plain = make_tiny_model(tmp_path / "plain", **EXPERTS["gpt_oss"])
    codes = pack_mxfp4(packed)
    path = plain / "model.safetensors"
    decoded = {name: convert_moe_packed_tensors(*each).contiguous() for name, each in codes.items()}
    save_file(load_file(path) | decoded, path)
    expected = logits_in_chunks(CausalLM.load(plain), (30, 31))
    assert np.array_equal(logits_in_chunks(CausalLM.load(packed), (30, 31)), expected)


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe"])
def test_experts_may_be_quantised(name: str, tmp_path: Path) -> None:
    """Routers are not; answers are those of the weights decoded."""
    folder = make_tiny_model(tmp_path / "model", **EXPERTS[name] | {"intermediate_size": 64})
    quantised = tmp_path / "quantised"
    assert "layers in fp8" in quantise_folder(folder, quantised, RoundedFormat("fp8", 32))
    config = ModelConfig.from_folder(quantised)
    weights = load_weights(quantised, config)
    assert isinstance(weights["model.layers.0.mlp.experts.1.up_proj.weight"], QuantisedWeight)
    assert not isinstance(weights["model.layers.0.mlp.gate.weight"], QuantisedWeight)
    backend = CpuBackend(config, load_tensors(quantised, config), 1)
    expected = logits_in_chunks(CausalLM(config, backend), (30, 31))
    assert np.array_equal(logits_in_chunks(CausalLM.load(quantised), (30, 31)), expected)
    fuse_experts(folder)
    with pytest.raises(CheckpointError, match="the experts of a layer are one tensor"):
        quantise_folder(folder, tmp_path / "other", RoundedFormat("fp8", 32))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[int, CausalLM]:
    """Of one and of two threads."""
    folder = make_tiny_model(tmp_path_factory.mktemp("experts") / "model", **EXPERTS["qwen2_moe"])
    return {threads: CausalLM.load(folder, threads=threads) for threads in (1, 2)}


def test_nodes_of_trees_get_the_bits_of_plain_rows(models: dict[int, CausalLM]) -> None:
    assert probe_row_invariance(models[2])


@given(cuts=st.lists(st.integers(1, 40), min_size=1, max_size=12), threads=st.sampled_from([1, 2]))
@settings(max_examples=15)
def test_chunks_and_threads_change_no_bit(models: dict[int, CausalLM], cuts: list[int], threads: int) -> None:
    """Whatever rows an expert has beside one another."""
    ends = np.unique(np.minimum(np.cumsum([*cuts, 110]), 110)).tolist()
    expected = logits_in_chunks(models[1], (110,))
    assert np.array_equal(logits_in_chunks(models[threads], tuple(ends)), expected)


def test_rows_of_many_groups(tmp_path: Path) -> None:
    """More rows of an expert than a task has at most, each as it is alone."""
    folder = make_tiny_model(
        tmp_path / "model", family="mixtral", layers=1, intermediate_size=16,
        overrides={"num_local_experts": 2, "num_experts_per_tok": 1},
    )  # fmt: skip
    model = CausalLM.load(folder)
    tokens = np.arange(210) % 3
    cache = model.new_cache(num_pages=210, page_size=1, scratch_slots=0)
    batch = RowBatch.chunk(tokens.tolist(), 0, list(range(210)), 1)
    logits = model.forward(cache, batch)
    single = model.new_cache(num_pages=210, page_size=1, scratch_slots=0)
    parts = [model.forward(single, RowBatch.chunk([int(t)], i, list(range(210)), 1)) for i, t in enumerate(tokens)]
    assert np.array_equal(np.concatenate(parts), logits)
