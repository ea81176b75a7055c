"""A quantised model's logits are those of the bfloat16 model that it decodes to, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from support.models import make_tiny_model
from support.quantised_models import FORMS, Form, write_quantised


def logits(model: CausalLM, chunks: tuple[int, ...]) -> np.ndarray:
    """Of all rows of one text, read in chunks."""
    tokens = np.random.default_rng(3).integers(0, model.config.vocab_size, sum(chunks)).tolist()
    pages = list(range(-(-len(tokens) // 8)))
    cache = model.new_cache(num_pages=len(pages), page_size=8, scratch_slots=0)
    parts, start = [], 0
    for size in chunks:
        parts.append(model.forward(cache, RowBatch.chunk(tokens[start : start + size], start, pages, 8)))
        start += size
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("source") / "model", family="qwen2", tied=False)


@pytest.mark.parametrize("form", FORMS)
def test_logits_are_those_of_the_decoded_model(source: Path, tmp_path: Path, form: str) -> None:
    folder = write_quantised(source, tmp_path / "model", FORMS[form])
    got, plain = CausalLM.load(folder, threads=1), CausalLM.load(tmp_path / "model-plain", threads=1)
    expected = logits(plain, (60,))
    for chunks in ((60,), (1,) * 20 + (2, 3, 35), (7, 53)):
        assert np.array_equal(logits(got, chunks).view(np.uint32), expected.view(np.uint32)), chunks


def test_a_quantised_head_and_the_tokens_of_it_that_are_scored(source: Path, tmp_path: Path) -> None:
    form = Form({**FORMS["pack4 g32"].config, "ignore": []}, FORMS["pack4 g32"].write, ignore=())
    folder = write_quantised(source, tmp_path / "model", form)
    scored = torch.tensor([7, 3, 400, 3])
    for some in (None, scored):
        got, plain = (CausalLM.load(each, threads=1, scored=some) for each in (folder, tmp_path / "model-plain"))
        assert np.array_equal(logits(got, (5, 1)).view(np.uint32), logits(plain, (5, 1)).view(np.uint32))


def test_layers_may_differ(source: Path, tmp_path: Path) -> None:
    """Some are left out, one in the midst of a fused layer."""
    config = {**FORMS["int8"].config, "ignore": ["lm_head", "re:.*layers.0.mlp.*", "model.layers.1.self_attn.k_proj"]}
    parts = ("lm_head", "layers.0.mlp", "layers.1.self_attn.k_proj")
    folder = write_quantised(source, tmp_path / "model", Form(config, FORMS["int8"].write, ignore=parts))
    got, plain = CausalLM.load(folder, threads=1), CausalLM.load(tmp_path / "model-plain", threads=1)
    assert np.array_equal(logits(got, (9, 1)).view(np.uint32), logits(plain, (9, 1)).view(np.uint32))
