"""Packing: nothing lost, documents apart, targets and weights aligned, both masks the same."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_mask

from training.data import Corpus, batches, block_mask, dense_mask, pack, place


def corpus_of(lengths: list[int]) -> Corpus:
    """Documents of tokens 100 d + 1, 100 d + 2, ...; the second half of each is weighted."""
    tokens = [100 * number + 1 + index for number, length in enumerate(lengths) for index in range(length)]
    weights = [float(index >= length // 2) for length in lengths for index in range(length)]
    return Corpus(
        torch.tensor(tokens, dtype=torch.int16),
        torch.tensor(weights, dtype=torch.float16),
        np.array(lengths, dtype=np.int64),
    )


@given(st.lists(st.integers(1, 32), min_size=1, max_size=40))
@settings(max_examples=50)
def test_documents_are_placed_whole_and_apart(lengths: list[int]) -> None:
    rows, offsets = place(np.array(lengths, dtype=np.int64), 32)
    taken: set[tuple[int, int]] = set()
    for row, offset, length in zip(rows.tolist(), offsets.tolist(), lengths, strict=True):
        assert offset + length <= 32
        cells = {(row, offset + index) for index in range(length)}
        assert not cells & taken
        taken |= cells


@given(st.lists(st.integers(2, 40), min_size=1, max_size=30), st.integers(0, 3))
@settings(max_examples=30)
def test_targets_are_the_next_tokens_of_the_same_document(lengths: list[int], seed: int) -> None:
    corpus = corpus_of(lengths)
    order = np.random.default_rng(seed).permutation(len(lengths))
    batch = pack(corpus, order, 32, 0.0, seed)
    weighted = batch.weights > 0
    same = batch.targets[weighted].long() // 100 == batch.tokens[weighted].long() // 100
    assert bool(same.all())
    assert bool((batch.targets[weighted] == batch.tokens[weighted] + 1).all())
    cut = [min(length, 32) for length in lengths]
    expected = sum(
        short - max(length // 2, 1) for length, short in zip(lengths, cut, strict=True) if short > length // 2
    )
    assert int(weighted.sum()) == expected


def test_batches_hold_every_row_once() -> None:
    corpus = corpus_of([7] * 23)
    rows = [b.tokens for b in batches(corpus, np.arange(23), 2, 16, 0.0, 0, keep_last=True)]
    tokens = torch.cat(rows)
    assert sorted(tokens[tokens > 0].tolist()) == sorted(corpus.tokens.long().tolist())


def test_glue_joins_documents() -> None:
    batch = pack(corpus_of([8] * 64), np.arange(64), 64, 1.0, 0)
    assert len(batch.documents.unique()) == 1
    assert len(pack(corpus_of([8] * 64), np.arange(64), 64, 0.0, 0).documents.unique()) == 64


def test_block_mask_equals_dense_mask() -> None:
    lengths = [100, 28, 300, 60, 130, 17, 1, 255, 128]
    documents = pack(corpus_of(lengths), np.arange(len(lengths)), 512, 0.3, 1).documents
    blocks = block_mask(documents)
    dense = dense_mask(documents)
    made = create_mask(blocks.mask_mod, len(documents), 1, 512, 512, device="cpu")
    assert torch.equal(made, dense)
    partial, full = block_tables(blocks.kv_num_blocks, blocks.kv_indices), None
    assert blocks.full_kv_num_blocks is not None and blocks.full_kv_indices is not None
    full = block_tables(blocks.full_kv_num_blocks, blocks.full_kv_indices)
    tiles = dense[:, 0].unflatten(1, (4, 128)).unflatten(3, (4, 128))
    assert torch.equal(full, tiles.all(dim=4).all(dim=2))
    assert torch.equal(partial | full, tiles.any(dim=4).any(dim=2))


def block_tables(counts: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Boolean [B, Q, K] of listed blocks."""
    counts, indices = counts[:, 0], indices[:, 0].long()
    chosen = torch.arange(indices.shape[-1]) < counts[..., None]
    return torch.zeros_like(chosen).scatter(-1, indices, chosen)
