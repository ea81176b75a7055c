from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch
from support.models import make_tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama-tied": {},
    "llama-untied-odd-sizes": {
        "tied": False, "hidden_size": 144, "heads": 6, "kv_heads": 2, "head_dim": 48, "vocab_size": 500,
        "intermediate_size": 208,
    },
    "llama3-rope": {"overrides": {"rope_theta": None, "rope_parameters": LLAMA3}},
    "llama-demo-shape": {"heads": 3, "kv_heads": 1, "head_dim": 128, "hidden_size": 384},
    "mistral": {"family": "mistral", "tied": False, "heads": 4, "kv_heads": 2},
    "qwen2": {"family": "qwen2", "shards": 2},
    "qwen3": {"family": "qwen3", "heads": 4, "kv_heads": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> CausalLM:
    return CausalLM.load(tiny_model)


def random_tokens(model: CausalLM, count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, model.config.vocab_size, count).tolist()


def poisoned_cache(model: CausalLM, **sizes: int) -> Any:
    cache = model.new_cache(**sizes)
    cache.keys[...] = np.nan
    cache.values[...] = np.nan
    return cache


@pytest.mark.parametrize("name", FAMILIES)
def test_matches_transformers(name: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / name, **FAMILIES[name])
    model = CausalLM.load(folder)
    tokens = random_tokens(model, 150)
    cache = poisoned_cache(model, num_pages=12, page_size=16, scratch_slots=0)
    pages = np.random.default_rng(1).permutation(12)[:10].tolist()
    parts, start = [], 0
    for end in (70, 71, 150):
        parts.append(model.forward(cache, RowBatch.chunk(tokens[start:end], start, pages, 16)))
        start = end
    twin = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = twin(torch.tensor([tokens])).logits[0].numpy()
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-4)


@pytest.fixture(scope="module")
def reference(model: CausalLM) -> tuple[list[int], np.ndarray]:
    """Tokens and their logits, all rows in one pass on consecutive pages."""
    tokens = random_tokens(model, 90)
    cache = model.new_cache(num_pages=6, page_size=16, scratch_slots=0)
    return tokens, model.forward(cache, RowBatch.chunk(tokens, 0, list(range(6)), 16)).copy()


@given(
    cuts=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    page_size=st.sampled_from([1, 2, 7, 16, 64]),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_chunks_pages_and_threads_change_no_bit(
    tiny_model: Path,
    reference: tuple[list[int], np.ndarray],
    cuts: list[int],
    page_size: int,
    threads: int,
    seed: int,
) -> None:
    tokens, expected = reference
    model = CausalLM.load(tiny_model, threads=threads)
    num_pages = -(-len(tokens) // page_size) + 3
    pages = np.random.default_rng(seed).permutation(num_pages).tolist()
    cache = poisoned_cache(model, num_pages=num_pages, page_size=page_size, scratch_slots=0)
    start = 0
    for size in [*cuts, len(tokens)]:
        chunk = tokens[start : start + size]
        if chunk:
            logits = model.forward(cache, RowBatch.chunk(chunk, start, pages, page_size))
            assert np.array_equal(logits, expected[start : start + len(chunk)])
        start += len(chunk)


def tree_batch(
    cache: Any, tokens: list[int], parents: list[int], prefix: int, pages: list[int], scratch: list[int]
) -> RowBatch:
    """The root (token 0 of `tokens`, position prefix - 1) through its page; below it one node a token."""
    rows = len(tokens)
    depths = [0]
    for parent in parents:
        depths.append(depths[parent + 1] + 1)
    slots = [cache.scratch_slot(i) for i in scratch]
    ancestors = np.full((rows, rows), -7, np.int32)
    for node, parent in enumerate(parents):
        row = node + 1
        ancestors[row, : depths[row] - 1] = ancestors[parent + 1, : depths[row] - 1]
        ancestors[row, depths[row] - 1] = slots[node]
    root_slot = pages[(prefix - 1) // cache.page_size] * cache.page_size + (prefix - 1) % cache.page_size
    return RowBatch(
        token_ids=np.array(tokens, np.int32),
        positions=np.array(depths, np.int32) + np.int32(prefix - 1),
        write_slots=np.array([root_slot, *slots], np.int32),
        page_lines=np.zeros(rows, np.int32),
        prefix_lengths=np.full(rows, prefix, np.int32),
        ancestor_slots=ancestors,
        num_ancestors=np.array(depths, np.int32),
        page_table=np.array([pages], np.int32),
        logit_rows=np.arange(rows, dtype=np.int32),
    )


@given(data=st.data(), prefix=st.integers(1, 40), page_size=st.sampled_from([1, 16, 64]))
@settings(max_examples=30)
def test_tree_nodes_get_the_bits_of_plain_decoding(
    model: CausalLM, reference: tuple[list[int], np.ndarray], data: st.DataObject, prefix: int, page_size: int
) -> None:
    """The true continuation hides among random nodes; its rows equal those of one pass, also after compaction."""
    tokens, expected = reference
    depth = data.draw(st.integers(1, 30))
    parents, labels, true_nodes = [], [], []
    for step in range(depth):
        for _ in range(data.draw(st.integers(0, 2))):
            parents.append(data.draw(st.integers(-1, len(parents) - 1)))
            labels.append(data.draw(st.integers(0, 511)))
        parents.append(true_nodes[-1] if true_nodes else -1)
        labels.append(tokens[prefix + step])
        true_nodes.append(len(parents) - 1)
    pages = list(range(-(-(prefix + depth + 1) // page_size)))[::-1]
    cache = poisoned_cache(model, num_pages=len(pages), page_size=page_size, scratch_slots=len(parents) + 2)
    if prefix > 1:
        model.forward(cache, RowBatch.chunk(tokens[: prefix - 1], 0, pages, page_size))
    scratch = data.draw(st.permutations(range(len(parents) + 2)))[: len(parents)]
    batch = tree_batch(cache, [tokens[prefix - 1], *labels], parents, prefix, pages, scratch)
    logits = model.forward(cache, batch)
    assert np.isfinite(logits).all()
    rows = [0, *(node + 1 for node in true_nodes)]
    assert np.array_equal(logits[rows], expected[prefix - 1 : prefix + depth])

    positions = prefix + np.arange(depth)
    target = np.array(pages, np.int32)[positions // page_size] * page_size + positions % page_size
    cache.copy_slots(batch.write_slots[rows[1:]], target.astype(np.int32))
    following = RowBatch.chunk([tokens[prefix + depth]], prefix + depth, pages, page_size)
    assert np.array_equal(model.forward(cache, following)[0], expected[prefix + depth])


def test_logit_rows_choose_and_order(model: CausalLM, reference: tuple[list[int], np.ndarray]) -> None:
    tokens, expected = reference
    cache = model.new_cache(num_pages=6, page_size=16, scratch_slots=0)
    batch = RowBatch.chunk(tokens, 0, list(range(6)), 16)
    for wanted in ([], [89], [5, 3, 88, 3]):
        chosen = dataclasses.replace(batch, logit_rows=np.array(wanted, np.int32))
        assert np.array_equal(model.forward(cache, chosen), expected[wanted])


def test_requests_share_a_pass(model: CausalLM, reference: tuple[list[int], np.ndarray]) -> None:
    """Two requests of different length and page lines; each gets the bits it gets alone."""
    tokens, expected = reference
    cache = poisoned_cache(model, num_pages=8, page_size=16, scratch_slots=0)
    one, two = RowBatch.chunk(tokens[:20], 0, [0, 1], 16), RowBatch.chunk(tokens[:40], 0, [7, 5, 3], 16)
    joined = RowBatch(
        **{
            field.name: np.concatenate([getattr(one, field.name), getattr(two, field.name)])
            for field in dataclasses.fields(RowBatch)
            if field.name not in ("page_table", "page_lines", "logit_rows")
        },
        page_lines=np.array([0] * 20 + [1] * 40, np.int32),
        page_table=np.array([[0, 1, -1], [7, 5, 3]], np.int32),
        logit_rows=np.arange(60, dtype=np.int32),
    )
    logits = model.forward(cache, joined)
    assert np.array_equal(logits[:20], expected[:20]) and np.array_equal(logits[20:], expected[:40])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": np.zeros(2, np.int32)}, "differ in length"),
        ({"token_ids": np.array([1, 512, 3], np.int32)}, "token_ids"),
        ({"token_ids": np.array([1, -1, 3], np.int32)}, "token_ids"),
        ({"positions": np.array([0, 1, 512], np.int32)}, "positions"),
        ({"write_slots": np.array([0, 1, 36], np.int32)}, "write_slots"),
        ({"page_lines": np.array([0, 0, 1], np.int32)}, "page_lines"),
        ({"prefix_lengths": np.array([1, 2, 4], np.int32)}, "prefix_lengths"),
        ({"prefix_lengths": np.array([1, 2, 1], np.int32), "num_ancestors": np.array([0, 0, 2], np.int32)}, "width"),
        ({"page_table": np.array([[2]], np.int32)}, "page_table"),
        ({"page_table": np.zeros((1, 0), np.int32)}, "page_table"),
        (
            {
                "prefix_lengths": np.array([1, 2, 2], np.int32),
                "num_ancestors": np.array([0, 0, 1], np.int32),
                "ancestor_slots": np.full((3, 1), 36, np.int32),
            },
            "ancestor_slots",
        ),
        ({"logit_rows": np.array([3], np.int32)}, "logit_rows"),
    ],
)
def test_malformed_plans_write_nothing(model: CausalLM, change: dict[str, np.ndarray], message: str) -> None:
    cache = poisoned_cache(model, num_pages=2, page_size=16, scratch_slots=4)
    batch = dataclasses.replace(RowBatch.chunk([1, 2, 3], 0, [0], 16), **change)
    with pytest.raises(ValueError, match=message):
        model.forward(cache, batch)
    assert np.isnan(cache.keys).all()


def test_an_empty_pass(model: CausalLM) -> None:
    cache = model.new_cache(num_pages=1, page_size=1, scratch_slots=0)
    assert model.forward(cache, RowBatch.chunk([], 0, [0], 1)).shape == (0, 512)


def test_sizes_and_devices(model: CausalLM, tiny_model: Path) -> None:
    cache = model.new_cache(num_pages=3, page_size=5, scratch_slots=2)
    assert cache.nbytes == model.kv_bytes_per_token() * cache.num_slots
    assert model.team.threads == 2
    model.warm_up()
    with pytest.raises(ValueError, match="device is 'abacus'"):
        CausalLM.load(tiny_model, device="abacus")
