from __future__ import annotations

import numpy as np
import pytest

from slipstream_kernels.ops.logprobs import logprobs, logprobs_reference


@pytest.mark.parametrize("vocab", [5, 64, 500])
@pytest.mark.parametrize("top", [0, 1, 5])
def test_matches_float64(vocab: int, top: int) -> None:
    """With ties: logits are multiples of 1/4."""
    rng = np.random.default_rng(vocab)
    logits = (np.round(rng.normal(size=(20, vocab)) * 8) / 4).astype(np.float32)
    chosen = rng.integers(0, vocab, 20).astype(np.int32)
    got, expected = logprobs(logits, chosen, top), logprobs_reference(logits, chosen, top)
    for array, reference in zip(got, expected, strict=True):
        np.testing.assert_allclose(array, reference.numpy(), rtol=1e-6, atol=1e-6)


def test_rows_further_apart_than_the_vocabulary() -> None:
    padded = np.random.default_rng(0).normal(size=(3, 100)).astype(np.float32)
    chosen = np.array([1, 2, 3], np.int32)
    views, copies = logprobs(padded[:, :70], chosen, 4), logprobs(padded[:, :70].copy(), chosen, 4)
    assert all(np.array_equal(a, b) for a, b in zip(views, copies, strict=True))


@pytest.mark.parametrize(("chosen", "top"), [([7], 1), ([-1], 1), ([0, 0], 1), ([0], 8)])
def test_refuses_what_does_not_fit(chosen: list[int], top: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        logprobs(np.zeros((1, 7), np.float32), np.array(chosen, np.int32), top)
