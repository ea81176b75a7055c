"""Every form of a vocabulary map becomes one tensor of the target's ids."""

import pytest
import torch

from draft_service.heads.vocabulary import target_ids
from slipstream_kernels.models.checkpoint.model_config import CheckpointError

IDS = [1, 4, 5, 9]
OFFSETS = torch.tensor([1, 3, 3, 6])
MASK = torch.tensor([token in IDS for token in range(10)])


@pytest.mark.parametrize(
    ("d2t", "t2d"), [(OFFSETS, MASK), (OFFSETS, None), (None, MASK), (OFFSETS.to(torch.int32), MASK.to(torch.uint8))]
)
def test_maps(d2t, t2d):
    ids = target_ids(d2t, t2d, draft_size=4, target_size=10)
    assert ids is not None
    assert ids.tolist() == IDS
    assert ids.dtype == torch.int64


def test_order_is_that_of_the_heads_entries():
    ids = target_ids(torch.tensor([9, 0, 2]), None, draft_size=3, target_size=10)
    assert ids is not None
    assert ids.tolist() == [9, 1, 4]


def test_whole_vocabulary_needs_no_map():
    assert target_ids(None, None, draft_size=10, target_size=10) is None
    assert target_ids(torch.zeros(10, dtype=torch.int64), None, draft_size=10, target_size=10) is None


@pytest.mark.parametrize(
    ("d2t", "t2d", "message"),
    [
        (None, None, "d2t is missing"),
        (torch.tensor(IDS), None, "names tokens"),
        (torch.tensor([1, 0, 2, 3]), None, "twice"),
        (torch.tensor([0, 3, 3, 6]), MASK, "different tokens"),
        (OFFSETS.float(), None, "integers"),
        (None, ~MASK, "marks 6"),
    ],
)
def test_maps_that_do_not_fit(d2t, t2d, message):
    with pytest.raises(CheckpointError, match=message):
        target_ids(d2t, t2d, draft_size=4, target_size=10)
