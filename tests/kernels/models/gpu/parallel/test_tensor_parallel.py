from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import read_adapter
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.gpu.gpu_model import GpuLimits, GpuModel
from slipstream_kernels.models.kv_form import KVForm
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from slipstream_kernels.token_tree import TokenTree
from support.families import EXPERTS
from support.gpu_passes import Span, pass_of
from support.lora_adapters import write_adapter
from support.models import make_tiny_model
from support.thread_ranks import ThreadGroup, on_ranks

LIMITS = GpuLimits(max_running=2, max_nodes=8, step_nodes=62, prefill_chunk=64, num_pages=10, max_context=128)


def decode(
    folder: Path, group: ThreadGroup | None, limits: GpuLimits = LIMITS
) -> tuple[torch.Tensor, list[list[int]], torch.Tensor, GpuModel]:
    """Logits, results and scores of a prompt, a tree beside another prompt, and a plain step."""
    model = GpuModel.load(folder, limits, device="cpu", group=group, progress=False)
    for rows in (model.kv.keys, model.kv.values):
        rows.fill_(0x7F if limits.kv.fp8 else torch.nan)
    passes = (
        [Span(0, list(range(50)), 0, range(5))],
        [Span(0, [7], 50, range(5), TokenTree((1, 2, 3), (-1, 0, -1))), Span(1, list(range(9)), 0, [8])],
        [Span(0, [-1], 51, range(5)), Span(1, [-1], 9, [8])],
    )
    logits, results, scores = [], [], []
    for spans in passes:
        for span in spans:
            model.set_pages(span.line, 0, span.pages)
        scored = np.array([(0, 7, 2), (len(spans[0].tokens) - 1, 9, 2)], np.int32)
        ticket = model.launch(replace(pass_of(model.limits, spans), scored=scored))
        results.extend(ticket.results().tolist())
        logits.append(ticket.logits.clone())
        scores.append(torch.from_numpy(model.scores(ticket)[0]))
    return torch.cat(logits), results, torch.cat(scores), model


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tied": True},
    "qwen2": {},
    "qwen2_moe": EXPERTS["qwen2_moe"] | {"head_dim": 64, "hidden_size": 128},
    "gpt_oss": EXPERTS["gpt_oss"],
    "llama4_text": EXPERTS["llama4"] | {"intermediate_size": 64},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_compute_what_one_computes(family: str, tmp_path: Path) -> None:
    form = {"tied": False} | FAMILIES[family] | {"family": family, "heads": 4, "kv_heads": 2}
    if family == "qwen2_moe":
        form["overrides"] = form["overrides"] | {"shared_expert_intermediate_size": 64}
    folder = make_tiny_model(tmp_path / family, **form)
    ranks = on_ranks(2, lambda group: decode(folder, group))
    logits, results, scores, whole = decode(folder, None)
    assert torch.equal(ranks[0][0], ranks[1][0]) and ranks[0][1] == ranks[1][1]
    assert torch.equal(ranks[0][2], ranks[1][2]) and torch.allclose(ranks[0][2], scores, atol=0.05)
    assert float((ranks[0][0] - logits).norm() / logits.norm()) < 1e-2
    assert [row[66] for row in ranks[0][1]] == [row[66] for row in results]
    for *_, model in ranks:
        assert model.kv.keys.shape[1] == 1 and model.kv_bytes_per_token() == whole.kv_bytes_per_token() / 2
        assert model.limits.num_pages == 10


def test_ranks_hold_keys_and_values_of_8_bits(tmp_path: Path) -> None:
    """A row's scale is its head's own, so that heads of other ranks make no difference."""
    folder = make_tiny_model(tmp_path / "model", tied=False, heads=4, kv_heads=2)
    limits = replace(LIMITS, kv=KVForm(fp8=True))
    ranks = on_ranks(2, lambda group: decode(folder, group, limits))
    logits, _, _, whole = decode(folder, None, limits)
    assert torch.equal(ranks[0][0], ranks[1][0]) and ranks[0][1] == ranks[1][1]
    assert float((ranks[0][0] - logits).norm() / logits.norm()) < 0.03
    assert whole.kv_bytes_per_token() == 2 * 2 * 2 * (64 + 4)
    assert whole.kv.keys.dtype == torch.uint8
    for *_, model in ranks:
        assert model.kv.keys.shape[1] == 1 and model.kv_bytes_per_token() == whole.kv_bytes_per_token() / 2


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_oss"])
def test_ranks_add_adapters_to_their_parts(family: str, tmp_path: Path) -> None:
    """Of sums that stand alone, or have norms and biases behind them. Rows without one are those of ranks without."""
    form = {"tied": False} | FAMILIES.get(family, {}) | {"family": family, "heads": 4, "kv_heads": 2}
    folder = make_tiny_model(tmp_path / "model", **form)
    config = ModelConfig.from_folder(folder)
    adapters = [
        read_adapter(write_adapter(tmp_path / str(rank), folder, seed=rank, rank=rank, strength=0.5), config)
        for rank in (4, 16)
    ]
    limits = replace(LIMITS, max_running=3, max_adapters=2)
    prompts = [list(range(first, first + 7)) for first in (0, 40, 80)]

    def answer(group: ThreadGroup | None) -> list[torch.Tensor]:
        """Logits of each prompt with the adapter of its line, alone and beside the others; of the last without any."""
        model = GpuModel.load(folder, limits, device="cpu", group=group, progress=False)
        for slot, adapter in enumerate(adapters):
            model.write_adapter(slot, adapter)
        spans = [Span(line, prompt, 0, [2 * line, 2 * line + 1]) for line, prompt in enumerate(prompts)]
        for slot, span in zip((0, 1, -1), spans, strict=True):
            model.set_line(span.line, pack_line(), adapter=slot)
            model.set_pages(span.line, 0, span.pages)
        made = [pass_of(model.limits, each, all_logits=True) for each in ([spans[0]], [spans[1]], [spans[2]], spans)]
        return [model.launch(plan).logits.clone() for plan in made]

    def bare(group: ThreadGroup) -> torch.Tensor:
        model = GpuModel.load(folder, replace(limits, max_adapters=0), device="cpu", group=group, progress=False)
        model.set_pages(2, 0, [4, 5])
        return model.launch(pass_of(model.limits, [Span(2, prompts[2], 0, [4, 5])], all_logits=True)).logits.clone()

    ranks = on_ranks(2, answer)
    for first, second in zip(*ranks, strict=True):
        assert torch.equal(first, second)
    *alone, together = ranks[0]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(alone[2], on_ranks(2, bare)[0])
    for found, expected in zip(alone, answer(None), strict=False):
        assert float((found - expected).norm() / expected.norm()) < 0.02
