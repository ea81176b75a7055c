from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel
from slipstream_kernels.models.gpu.ops_namespace import twins
from support.gpu_passes import Span, pass_of
from support.models import make_tiny_model

SIZES = {
    "max_running": 3, "max_nodes": 16, "step_nodes": 30, "prefill_chunk": 128, "num_pages": 40, "max_context": 256,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama-tied": {},
    "mistral-untied": {"family": "mistral", "tied": False, "heads": 4, "kv_heads": 2},
    "qwen2": {"family": "qwen2", "shards": 2},
    "qwen3": {"family": "qwen3", "heads": 4, "kv_heads": 2, "head_dim": 128},
}


def load(folder: Path, **sizes: Any) -> GpuModel:
    model = GpuModel.load(folder, GpuLimits(**SIZES | sizes), device="cpu", ops=twins(), progress=False)
    model.kv.keys.fill_(torch.nan)
    model.kv.values.fill_(torch.nan)
    return model


def random_tokens(model: GpuModel, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.config.vocab_size, count).tolist()


def run(model: GpuModel, spans: list[Span], **options: Any) -> torch.Tensor:
    """Logits of every row; pages are made known first."""
    for span in spans:
        model.set_pages(span.line, 0, span.pages)
    ticket = model.launch(pass_of(model.limits, spans, all_logits=True, **options))
    ticket.results()
    return ticket.logits.clone()


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", FAMILIES)
def test_matches_transformers(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / name, **FAMILIES[name])
    model = load(folder, step_nodes=160, max_nodes=64)
    tokens = random_tokens(model, 90)
    pages = np.random.default_rng(1).permutation(40)[:6].tolist()
    parts, start = [], 0
    for end in (50, 51, 90):
        parts.append(run(model, [Span(1, tokens[start:end], start, pages)]))
        start = end
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = reference(torch.tensor([tokens])).logits[0]
    assert relative_error(torch.cat(parts), expected) < 0.02
