from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slipstream_kernels.ops.logit_mask import masked
from slipstream_kernels.ops.sampling import SamplingRows, sample


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 500])
def test_what_is_not_allowed_is_minus_infinity(vocab: int) -> None:
    random = np.random.default_rng(vocab)
    logits = random.standard_normal((3, vocab)).astype(np.float32)
    masks = [
        random.integers(0, 2**32, -(-vocab // 32) + extra, dtype=np.uint32)[: -(-vocab // 32)] for extra in range(3)
    ]
    left = masked(logits.copy(), masks)
    for row, mask in enumerate(masks):
        for token in range(vocab):
            allowed = int(mask[token // 32]) >> (token % 32) & 1
            assert left[row, token] == (logits[row, token] if allowed else -np.inf)


def test_masks_that_do_not_fit_are_refused() -> None:
    logits = np.zeros((2, 33), np.float32)
    for masks in ([np.zeros(2, np.uint32)], [np.zeros(1, np.uint32)] * 2, [np.zeros(2, np.int64)] * 2):
        with pytest.raises(ValueError, match="do not fit"):
            masked(logits, masks)


def test_rows_can_be_taken_with_all_that_is_theirs() -> None:
    offsets, ids = np.array([0, 2, 2, 5], np.int32), np.array([1, 2, 3, 4, 5], np.int32)
    rows = SamplingRows.plain([7, 8, 9], temperature=0.5, seed=3)
    rows = replace(
        rows,
        path_offsets=offsets, path_tokens=ids, mask_offsets=offsets, mask_ids=ids + 10,
        bias_offsets=offsets, bias_ids=ids, bias_values=ids.astype(np.float32),
    )  # fmt: skip
    taken = rows.take(np.array([2, 0, 2], np.int32))
    assert taken.position.tolist() == [9, 7, 9]
    assert taken.bias_offsets.tolist() == taken.path_offsets.tolist() == [0, 3, 5, 8]
    assert taken.bias_ids.tolist() == [3, 4, 5, 1, 2, 3, 4, 5] == taken.bias_values.tolist()
    assert taken.mask_ids.tolist() == [13, 14, 15, 11, 12, 13, 14, 15]
    logits = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    assert sample(logits[[2, 0, 2]], taken).tolist() == sample(logits, rows)[[2, 0, 2]].tolist()
    assert len(rows.take(np.zeros(0, np.int32))) == 0
