"""Masks reach the device as they were filled, beside what they decide: see `test_masked_decision` for the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.forward.masked_sampling import MaskRoom, num_words

VOCAB = 100
LIMITS = GpuLimits(max_running=3, max_nodes=4, step_nodes=8, prefill_chunk=8, page_size=4, num_pages=4, max_context=16)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_what_is_sent_is_what_was_filled(device: torch.device) -> None:
    """Twice in the same room: the second time fewer rows and items."""
    room = MaskRoom(LIMITS, VOCAB, device)
    rng = np.random.default_rng(0)
    assert room.rows.shape == (LIMITS.max_decode_rows, num_words(VOCAB))
    for rows, items in (([3, -1, 0, 2], 3), ([1], 2), ([], 0)):
        masks = rng.integers(0, 2**32, (len(rows), 4), dtype=np.uint32)
        deciding = rng.integers(-1, 9, (items, 4)).astype(np.int32)
        room.rows[: len(rows)] = masks
        sent = room.send(np.array(rows, np.int32), deciding)
        assert sent.chosen.tolist() == rows
        assert np.array_equal(sent.masks.cpu().numpy().view(np.uint32), masks)
        assert np.array_equal(sent.deciding.cpu().numpy(), deciding)
        assert all(each.data_ptr() % 64 == 0 for each in (sent.chosen, sent.masks, sent.deciding))


@pytest.mark.parametrize(("vocab_size", "words"), [(32, 1), (33, 2), (128_256, 4008)])
def test_every_token_has_a_bit(vocab_size: int, words: int) -> None:
    assert num_words(vocab_size) == words
    room = MaskRoom(LIMITS, vocab_size, torch.device("meta" if vocab_size > 100 else "cpu"))
    assert room._device.nbytes == MaskRoom.num_bytes(LIMITS, vocab_size)
