from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from slipstream_kernels.models.checkpoint.adapter.lora_adapter import LoraAdapter, read_adapter
from slipstream_kernels.models.checkpoint.model_config import ModelConfig
from slipstream_kernels.models.cpu.adapter_table import adapter_spans, most_adapter_bytes, pack_adapter
from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from support.families import EXPERTS
from support.lora_adapters import merge, write_adapter
from support.models import make_tiny_model

PAGES = 8
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "odd-sizes": {"hidden_size": 144, "heads": 6, "kv_heads": 2, "head_dim": 48, "intermediate_size": 208},
    "gemma3": {"family": "gemma3_text"},
    "qwen2": {"family": "qwen2"},
    "experts": EXPERTS["qwen2_moe"],
}


def load(folder: Path, *adapters: LoraAdapter, threads: int = 1) -> CausalLM:
    model = CausalLM.load(folder, threads=threads)
    model.reserve_adapters(len(adapters))
    for slot, adapter in enumerate(adapters):
        model.install_adapter(slot, model.pack_adapter(adapter, slot))
    return model


def logits(model: CausalLM, tokens: list[int], slot: int, cuts: tuple[int, ...] = ()) -> np.ndarray:
    """Of all tokens, computed in chunks that end at `cuts`."""
    cache = model.new_cache(num_pages=PAGES, page_size=16, scratch_slots=0)
    parts, start = [], 0
    for end in (*cuts, len(tokens)):
        batch = RowBatch.chunk(tokens[start:end], start, list(range(PAGES)), 16)
        adapters = np.full(end - start, slot, np.int32)
        parts.append(model.forward(cache, dataclasses.replace(batch, adapters=adapters)).copy())
        start = end
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def adapters(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[LoraAdapter]:
    config = CausalLM.load(tiny_model).config
    folder = tmp_path_factory.mktemp("adapters")
    options: list[dict[str, Any]] = [
        {"rank": 8},
        {"rank": 16, "seed": 1, "targets": ("q_proj", "v_proj"), "use_rslora": True},
        {"rank": 100, "seed": 2, "targets": ("k_proj", "up_proj", "down_proj"), "ranks": {"k_proj": 3},
         "rank_pattern": {"k_proj": 3}},
    ]  # fmt: skip
    return [
        read_adapter(write_adapter(folder / str(index), tiny_model, **each), config)
        for index, each in enumerate(options)
    ]


@pytest.fixture(scope="module")
def model(tiny_model: Path, adapters: list[LoraAdapter]) -> CausalLM:
    return load(tiny_model, *adapters, threads=2)


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 512, count).tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_merged_weights(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", **FAMILIES[name])
    model = CausalLM.load(folder)
    adapter = read_adapter(write_adapter(tmp_path / "adapter", folder, strength=0.3), model.config)
    merged = merge(tmp_path / "merged", folder, adapter)
    tokens = tokens_of(60)
    found = logits(load(folder, adapter), tokens, 0, (23, 24))
    twin = transformers.AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    with torch.no_grad():
        expected = twin(torch.tensor([tokens])).logits[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-3 if name == "gemma3" else 2e-4)
    plain = logits(load(folder), tokens, -1)
    assert np.abs(plain - expected).max() > 0.05  # the adapter says something


def test_rows_keep_their_bits_whoever_is_beside_them(model: CausalLM, tiny_model: Path) -> None:
    """Rows of four requests, with three adapters and without, in one pass and alone, in whole and in pieces."""
    prompts = [tokens_of(30, seed) for seed in range(4)]
    slots = [0, 1, 2, -1]
    alone = [logits(model, prompt, slot) for prompt, slot in zip(prompts, slots, strict=True)]
    assert np.array_equal(alone[3], logits(load(tiny_model), prompts[3], -1))
    for prompt, slot, expected in zip(prompts, slots, alone, strict=True):
        assert np.array_equal(logits(model, prompt, slot, (1, 2, 17)), expected)
    for order in ([0, 1, 2, 3], [3, 2, 0, 1]):
        together = _mixed(model, [prompts[i] for i in order], [slots[i] for i in order])
        for place, index in enumerate(order):
            assert np.array_equal(together[place], alone[index])


def _mixed(model: CausalLM, prompts: list[list[int]], slots: list[int]) -> list[np.ndarray]:
    """Tokens of all prompts taking turns in one pass, so that no two rows of a request are neighbours."""
    count, size = len(prompts), len(prompts[0])
    cache = model.new_cache(num_pages=2 * count, page_size=16, scratch_slots=0)
    parts = [RowBatch.chunk(prompt, 0, [2 * i, 2 * i + 1], 16) for i, prompt in enumerate(prompts)]
    turns = np.arange(count * size).reshape(count, size).T.flatten()

    def take(name: str) -> np.ndarray:
        return np.ascontiguousarray(np.concatenate([getattr(part, name) for part in parts])[turns])

    names = ("token_ids", "positions", "write_slots", "prefix_lengths", "ancestor_slots", "num_ancestors")
    batch = RowBatch(
        **{name: take(name) for name in names},
        page_lines=(turns // size).astype(np.int32),
        page_table=np.concatenate([part.page_table for part in parts]),
        logit_rows=np.argsort(turns).astype(np.int32),
        adapters=np.repeat(np.array(slots, np.int32), size)[turns],
    )
    return np.split(model.forward(cache, batch).copy(), count)


def test_a_slot_is_emptied_and_filled_again(tiny_model: Path, adapters: list[LoraAdapter]) -> None:
    model, tokens = load(tiny_model, *adapters[:2]), tokens_of(20)
    first, second = (logits(model, tokens, slot) for slot in (0, 1))
    with pytest.raises(ValueError, match="slot 1 of 2 is taken"):
        model.install_adapter(1, model.pack_adapter(adapters[2], 1))
    model.remove_adapter(0)
    assert np.array_equal(logits(model, tokens, 1), second)
    with pytest.raises(ValueError, match="adapters are not those of loaded slots"):
        logits(model, tokens, 0)
    model.install_adapter(0, model.pack_adapter(adapters[2], 0))
    assert not np.array_equal(logits(model, tokens, 0), first)
    model.remove_adapter(0)
    model.install_adapter(0, model.pack_adapter(adapters[0], 0))
    assert np.array_equal(logits(model, tokens, 0), first)
    with pytest.raises(ValueError, match="not those of loaded slots, or not one a row"):
        logits(model, tokens, 2)


def test_scores_of_the_last_pass_stand_beside_adapters(model: CausalLM) -> None:
    tokens = tokens_of(12)
    expected = logits(model, tokens, 0)
    assert np.array_equal(model.last_logits(np.array([3, 0], np.int32)), expected[[3, 0]])


def test_spans_are_runs_of_one_adapter() -> None:
    adapters = np.array([-1, 2, 2, 0, -1, -1, 0, *[1] * 200], np.int32)
    spans = np.zeros((len(adapters), 3), np.int32)
    count = adapter_spans(adapters, spans)
    assert spans[:count].tolist() == [[1, 2, 2], [3, 1, 0], [6, 1, 0], [7, 96, 1], [103, 96, 1], [199, 8, 1]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rank", [8, 100])
def test_an_adapter_of_all_projections_takes_what_is_planned(family: str, rank: int, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", layers=2, **FAMILIES[family])
    config = ModelConfig.from_folder(model)
    adapter = read_adapter(write_adapter(tmp_path / "adapter", model, rank=rank), config)
    assert pack_adapter(config, adapter).nbytes == most_adapter_bytes(config, rank)
    assert most_adapter_bytes(config, rank + 64) > most_adapter_bytes(config, rank)
