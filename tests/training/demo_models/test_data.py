"""Packing: nothing lost, documents apart, targets and weights aligned."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.demo_models.data import Corpus, batches, pack, place


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
