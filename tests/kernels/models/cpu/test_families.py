"""Every family and form on the CPU: against transformers, and against itself in chunks, pages and trees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.checkpoint.quantisation.quantise_folder import quantise_folder
from slipstream_kernels.models.checkpoint.quantisation.round_to_nearest import RoundedFormat
from slipstream_kernels.models.checkpoint.weight_loader import load_tensors, load_weights
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.invariance import probe_row_invariance
from slipstream_kernels.models.cpu.row_batch import RowBatch
from slipstream_kernels.ops.quantised_weight import QuantisedWeight
from support.families import FORMS, GEMMA2, ROPES
from support.models import make_tiny_model

TOKENS = np.random.default_rng(0).integers(0, 512, 110).tolist()


def logits_in_chunks(model: CausalLM, ends: tuple[int, ...], page_size: int = 16) -> np.ndarray:
    count = -(-ends[-1] // page_size)
    pages = np.random.default_rng(1).permutation(count).tolist()
    cache = model.new_cache(num_pages=count, page_size=page_size, scratch_slots=0)
    cache.keys[...] = np.nan
    cache.values[...] = np.nan
    starts = (0, *ends[:-1])
    parts = [
        model.forward(cache, RowBatch.chunk(TOKENS[start:end], start, pages, page_size))
        for start, end in zip(starts, ends, strict=True)
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize("name", [*ROPES, *FORMS])
@pytest.mark.filterwarnings("ignore")  # of fields that transformers reads and would name otherwise
def test_matches_transformers(name: str, tmp_path: Path) -> None:
    """Within the window and beyond it, within the original context and beyond it."""
    folder = make_tiny_model(tmp_path / "model", **(ROPES | FORMS)[name])
    found = logits_in_chunks(CausalLM.load(folder), (70, 71, 110))
    twin = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )  # fmt: skip
    with torch.no_grad():
        expected = twin(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert np.array_equal(found.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("name", ["qwen3, window between", "phi4-mini", "gemma2", "gemma3"])
def test_chunks_pages_and_trees_change_no_bit(name: str, tmp_path: Path) -> None:
    """The windows of nodes begin among their ancestors and among the prefix."""
    model = CausalLM.load(make_tiny_model(tmp_path / "model", **FORMS[name]))
    assert probe_row_invariance(model)
    expected = logits_in_chunks(model, (110,))
    for ends, page_size in (((1, 2, 30, 65, 66, 110), 1), ((50, 110), 7), ((19, 20, 21, 110), 64)):
        assert np.array_equal(logits_in_chunks(model, ends, page_size), expected), (ends, page_size)


def test_a_model_of_windows_as_long_as_its_context_is_one_without(tmp_path: Path) -> None:
    """Bit for bit."""
    plain = CausalLM.load(make_tiny_model(tmp_path / "plain", family="mistral"))
    wide = CausalLM.load(make_tiny_model(tmp_path / "wide", family="mistral", overrides={"sliding_window": 512}))
    fitting = CausalLM.load(make_tiny_model(tmp_path / "fits", family="mistral", overrides={"sliding_window": 110}))
    expected = logits_in_chunks(plain, (110,))
    assert np.array_equal(logits_in_chunks(wide, (110,)), expected)
    assert np.array_equal(logits_in_chunks(fitting, (110,)), expected)


def test_scored_tokens_are_bounded_too(tmp_path: Path) -> None:
    folder, ids = make_tiny_model(tmp_path / "model", **GEMMA2), torch.tensor([5, 1, 300])
    whole, part = CausalLM.load(folder), CausalLM.load(folder, scored=ids)
    expected = logits_in_chunks(whole, (30,))
    assert abs(expected).max() < 3
    assert np.array_equal(logits_in_chunks(part, (30,)), expected[:, ids.numpy()])


def test_an_embedding_is_scaled_in_its_own_type(tmp_path: Path) -> None:
    """55.4256 is 55.5 in bfloat16, with which the models were trained."""
    folder = make_tiny_model(tmp_path / "model", family="gemma2", hidden_size=3072, layers=1, intermediate_size=16)
    assert ModelConfig.from_folder(folder).form.embed_scale == 55.5


def test_fused_projections_may_be_quantised(tmp_path: Path) -> None:
    """Their rows are parted, and those of queries and keys put in order, with the scales that they have."""
    folder = make_tiny_model(tmp_path / "model", **FORMS["phi4-mini"])
    quantise_folder(folder, tmp_path / "quantised", RoundedFormat("fp8", 128))
    config = ModelConfig.from_folder(tmp_path / "quantised")
    weights = load_weights(tmp_path / "quantised", config)
    assert isinstance(weights["model.layers.0.self_attn.q_proj.weight"], QuantisedWeight)
    plain = load_tensors(folder, ModelConfig.from_folder(folder))
    for name, tensor in load_tensors(tmp_path / "quantised", config).items():
        torch.testing.assert_close(tensor.float(), plain[name].float(), rtol=0.07, atol=2e-3)
    found, expected = (logits_in_chunks(CausalLM.load(each), (40,)) for each in (tmp_path / "quantised", folder))
    assert np.linalg.norm(found - expected) < 0.2 * np.linalg.norm(expected)
