"""The most frequent tokens are scored, with maps as the public layout has them."""

import numpy as np
import pytest
import torch

from draft_service.heads.vocabulary import target_ids
from training.fit.vocabulary import coverage_by_size, default_size, select


def test_the_most_frequent_and_those_demanded() -> None:
    frequencies = np.array([0, 5, 0, 50, 20, 5, 20, 0])
    chosen = select(frequencies, 4, always=(7,))
    assert chosen.ids.tolist() == [3, 4, 6, 7]
    assert chosen.coverage(frequencies) == pytest.approx(0.9)
    assert chosen.d2t.tolist() == [3, 3, 4, 4]
    assert torch.equal(target_ids(chosen.d2t, chosen.t2d, draft_size=4, target_size=8), chosen.ids)
    assert select(frequencies, 6, always=()).ids.tolist() == [0, 1, 3, 4, 5, 6]
    whole = select(frequencies, 8, always=())
    assert whole.is_whole and whole.coverage(frequencies) == 1
    assert coverage_by_size(frequencies, 4) == pytest.approx({1: 0.5, 2: 0.7, 4: 0.95, 8: 1.0})


@pytest.mark.parametrize("size", [0, 9])
def test_sizes_out_of_range_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"draft_vocab is {size}, must be 1 to 8"):
        select(np.ones(8), size, always=())


def test_default_sizes() -> None:
    assert [default_size(size) for size in (128256, 32000, 8192, 100)] == [32064, 8000 // 64 * 64, 4096, 100]
