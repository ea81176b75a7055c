"""A start-up check of the promise that exactness rests on: a row's result does not depend on its company."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from slipstream_kernels.models.cpu.causal_lm import CausalLM
from slipstream_kernels.models.cpu.row_batch import RowBatch

_PAGE_SIZE = 8
_ROWS = 23
_CHUNKS = ((1,) * _ROWS, (2, 3, 4, 5, 9), (6, 17), (13, 10))
"""Ways to cut the rows that meet every block size of the linear layers."""


def probe_row_invariance(model: CausalLM, *, seed: int = 0) -> bool:
    """Whether random rows get equal bits together, alone, in several chunks and as nodes of a tree.

    Compares logits of up to `_ROWS` tokens, fewer where the context is shorter; takes a few forward passes. A device
    that fails cannot serve exactly.
    """
    rows = min(_ROWS, model.config.max_context)
    tokens = np.random.default_rng(seed).integers(0, model.config.vocab_size, rows).tolist()
    expected = _in_chunks(model, tokens, (rows,))
    chunked = (_in_chunks(model, tokens, chunks) for chunks in _CHUNKS)
    return all(_same_bits(expected, logits) for logits in chunked) and _same_bits(expected, _as_tree(model, tokens))


def _in_chunks(model: CausalLM, tokens: list[int], chunks: tuple[int, ...]) -> npt.NDArray[np.float32]:
    pages = list(range((len(tokens) + _PAGE_SIZE - 1) // _PAGE_SIZE))
    cache = model.new_cache(num_pages=len(pages), page_size=_PAGE_SIZE, scratch_slots=0)
    parts, start = [], 0
    for size in chunks:
        chunk = tokens[start : start + size]
        if not chunk:
            break
        parts.append(model.forward(cache, RowBatch.chunk(chunk, start, pages, _PAGE_SIZE)))
        start += size
    return np.concatenate(parts)


def _as_tree(model: CausalLM, tokens: list[int]) -> npt.NDArray[np.float32]:
    """The first token through a page of one slot, the others as a chain of tree nodes in reversed scratch slots."""
    rows = len(tokens)
    cache = model.new_cache(num_pages=1, page_size=1, scratch_slots=rows)
    plan = RowBatch.chunk(tokens, 0, list(range(rows)), 1)
    slots = np.array([0] + [cache.scratch_slot(rows - i) for i in range(1, rows)], np.int32)
    ancestors = np.zeros((rows, rows), np.int32)
    ancestors[:, : rows - 1] = slots[1:]
    return model.forward(
        cache,
        dataclasses.replace(
            plan,
            write_slots=slots,
            prefix_lengths=np.ones(rows, np.int32),
            ancestor_slots=ancestors,
            num_ancestors=np.arange(rows, dtype=np.int32),
            page_table=np.zeros((1, 1), np.int32),
        ),
    )


def _same_bits(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))
