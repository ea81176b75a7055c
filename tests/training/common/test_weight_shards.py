"""Weights split over files."""

import torch

from training.common.weight_shards import shards


def test_shards_keep_order_and_limit() -> None:
    weights = {str(number): torch.zeros(100, dtype=torch.uint8) for number in range(7)}
    split = shards(weights, 250)
    assert [list(shard) for shard in split] == [["0", "1"], ["2", "3"], ["4", "5"], ["6"]]
