"""Random sampling parameters of every kind."""

from __future__ import annotations

import numpy as np

from slipstream_kernels.ops.sampling import SamplingRows


def random_rows(rows: int, vocab_size: int, *, seed: int, temperature: float | None = None) -> SamplingRows:
    """Rows with bias, penalties on two histories, paths, forbidden ids and filters, each on for some of them."""
    rng = np.random.default_rng(seed)

    def some(values: np.ndarray, off: float) -> np.ndarray:
        return np.where(rng.random(rows) < 0.5, values, off).astype(np.float32)

    def lists(most: int) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.concatenate([[0], rng.integers(0, most + 1, rows).cumsum()]).astype(np.int32)
        return offsets, rng.integers(0, vocab_size, offsets[-1]).astype(np.int32)

    path_offsets, path_tokens = lists(5)
    bias_offsets, bias_ids = lists(4)
    mask_offsets, mask_ids = lists(3)
    return SamplingRows(
        position=rng.integers(0, 4096, rows).astype(np.int32),
        temperature=some(rng.uniform(0.1, 2, rows), 0)
        if temperature is None
        else np.full(rows, temperature, np.float32),
        top_k=some(rng.integers(1, vocab_size + 3, rows), 0).astype(np.int32),
        top_p=some(rng.uniform(0.05, 1, rows), 1),
        min_p=some(rng.uniform(0, 0.3, rows), 0),
        seed=rng.integers(0, 2**64, rows, dtype=np.uint64),
        choice=rng.integers(0, 4, rows).astype(np.uint32),
        repetition=some(rng.uniform(0.5, 2, rows), 1),
        presence=some(rng.uniform(-2, 2, rows), 0),
        frequency=some(rng.uniform(-2, 2, rows), 0),
        history=rng.integers(-1, 2, rows).astype(np.int32),
        prompt_seen=(rng.random((2, vocab_size)) < 0.3).astype(np.uint8),
        output_counts=rng.integers(0, 3, (2, vocab_size)).astype(np.int32),
        path_offsets=path_offsets,
        path_tokens=path_tokens,
        bias_offsets=bias_offsets,
        bias_ids=bias_ids,
        bias_values=rng.normal(size=len(bias_ids)).astype(np.float32) * 3,
        mask_offsets=mask_offsets,
        mask_ids=mask_ids,
    )
