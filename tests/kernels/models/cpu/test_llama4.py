"""Llama-4 on the CPU: against itself in chunks of prompts, pages, threads and trees, in all layouts, and quantised.

Against transformers it is compared with the other mixtures, in `test_experts`.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import read_adapter
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors, load_weights
from slipstream_kernels.models.cpu.backend import CpuBackend
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.invariance import probe_row_invariance
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from support.experts import add_vision, part_experts
from support.families import EXPERTS
from support.lora_adapters import write_adapter
from support.models import make_tiny_model
from tests.kernels.models.cpu.test_families import TOKENS, logits_in_chunks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("llama4") / "model", **EXPERTS["llama4"])


@pytest.fixture(scope="module")
def model(folder: Path) -> CausalLM:
    return CausalLM.load(folder, threads=1)


def test_chunks_pages_threads_and_trees_change_no_bit(folder: Path, model: CausalLM) -> None:
    """Prefill one, sixteen and all at a time, across the chunks of attention, of sixteen, and within them."""
    expected = logits_in_chunks(model, (110,))
    cuts = (tuple(range(1, 111)), (*range(16, 110, 16), 110), (15, 17, 31, 33, 50, 110), (110,))
    two = CausalLM.load(folder, threads=2)
    for ends, page_size in zip(cuts, (1, 16, 7, 64), strict=True):
        for each in (model, two):
            assert np.array_equal(logits_in_chunks(each, ends, page_size), expected), (ends, page_size)
    assert probe_row_invariance(model) and probe_row_invariance(two)


def test_a_chunk_as_long_as_the_context_is_none(tmp_path: Path) -> None:
    """Bit for bit, and shorter ones are not."""
    form = EXPERTS["llama4"]

    def logits(name: str, chunk: int | None) -> np.ndarray:
        options = form | {"overrides": form["overrides"] | {"attention_chunk_size": chunk}}
        return logits_in_chunks(CausalLM.load(make_tiny_model(tmp_path / name, **options)), (110,))

    expected = logits("none", None)
    assert np.array_equal(logits("whole", 512), expected) and np.array_equal(logits("fits", 110), expected)
    cut = logits("cut", 64)
    assert np.array_equal(cut[:64], expected[:64]) and (cut[64:] != expected[64:]).any(axis=1).all()


@pytest.mark.parametrize("name", ["llama4", "llama4, two of all"])
def test_every_layout_gives_the_same(name: str, tmp_path: Path) -> None:
    """Experts as one tensor or as modules; a model of text, or a part of one that sees."""
    folder = make_tiny_model(tmp_path / "model", **EXPERTS[name])
    expected = logits_in_chunks(CausalLM.load(folder), (40,))
    part_experts(folder)
    assert np.array_equal(logits_in_chunks(CausalLM.load(folder), (40,)), expected)
    add_vision(folder)
    assert np.array_equal(logits_in_chunks(CausalLM.load(folder), (40,)), expected)


@pytest.mark.parametrize("nested", [False, True])
def test_experts_in_fp8_are_those_that_they_decode_to(nested: bool, tmp_path: Path) -> None:
    """Routers are not quantised; answers are those of the weights decoded, bit for bit."""
    form = EXPERTS["llama4"] | {"intermediate_size": 64}
    folder = make_tiny_model(tmp_path / "model", **form)
    part_experts(folder)
    if nested:
        add_vision(folder)
    quantised = tmp_path / "quantised"
    quantise_folder(folder, quantised, RoundedFormat("fp8", 32))
    config = ModelConfig.from_folder(quantised)
    weights = load_weights(quantised, config)
    assert isinstance(weights["model.layers.0.mlp.experts.1.up_proj.weight"], QuantisedWeight)
    assert isinstance(weights["model.layers.0.self_attn.q_proj.weight"], QuantisedWeight)
    assert not isinstance(weights["model.layers.0.mlp.gate.weight"], QuantisedWeight)
    assert not isinstance(weights["lm_head.weight"], QuantisedWeight)
    plain = CausalLM(config, CpuBackend(config, load_tensors(quantised, config), 1))
    expected = logits_in_chunks(plain, (30, 31))
    assert np.array_equal(logits_in_chunks(CausalLM.load(quantised), (30, 31)), expected)


def test_an_adapter_turns_with_its_heads(folder: Path, tmp_path: Path) -> None:
    """Of all projections that can have one: as transformers computes with weights into which it was merged."""
    plain = CausalLM.load(folder)
    adapter = read_adapter(write_adapter(tmp_path / "adapter", folder, strength=0.3), plain.config)
    assert len(adapter.weights) == 5 * 4 + 3
    merged = tmp_path / "merged"
    shutil.copytree(folder, merged)
    weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    parts = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    for name, b in parts.items():
        if name.endswith("lora_B.weight"):
            a = parts[name.replace("lora_B", "lora_A")]
            stored = name.removeprefix("base_model.model.").replace("lora_B.", "")
            weights[stored] += 2 * b.bfloat16().float() @ a.bfloat16().float()
    save_file(weights, merged / "model.safetensors", {"format": "pt"})
    twin = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    with torch.no_grad():
        expected = twin(torch.tensor([TOKENS])).logits[0].numpy()
    plain.reserve_adapters(1)
    plain.install_adapter(0, plain.pack_adapter(adapter, 0))
    cache = plain.new_cache(num_pages=7, page_size=16, scratch_slots=0)
    batch = RowBatch.chunk(TOKENS, 0, list(range(7)), 16)
    found = plain.forward(cache, replace(batch, adapters=np.zeros(len(TOKENS), np.int32)))
    np.testing.assert_allclose(found, expected, atol=2e-4)
