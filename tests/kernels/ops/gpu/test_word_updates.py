from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.gpu.word_updates import write_words, write_words_reference


@pytest.mark.parametrize("write", [write_words, write_words_reference])
@pytest.mark.parametrize(("words", "count", "padding"), [(5000, 700, 68), (300, 1, 255), (10, 0, 3), (64, 64, 0)])
def test_writes_what_is_listed_and_nothing_else(write, words: int, count: int, padding: int, device) -> None:
    rng = np.random.default_rng(words)
    table = rng.integers(-(2**31), 2**31, words).astype(np.int32)
    indices = rng.permutation(words)[:count]
    updates = np.stack([indices, rng.integers(-(2**31), 2**31, count)], axis=1)
    updates = np.concatenate([updates, updates[:1], np.full((padding, 2), -1)]).astype(np.int32)  # one listed twice
    expected = table.copy()
    expected[indices] = updates[:count, 1]
    rng.shuffle(updates)
    found = torch.from_numpy(table).to(device)
    write(found, torch.from_numpy(updates).to(device))
    assert np.array_equal(found.cpu().numpy(), expected)
