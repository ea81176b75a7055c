"""Which positions count, and where they lie in a row."""

import torch

from training.features.source import FeatureSequence
from training.fit.batch import collate, reach


def test_positions_count_where_root_and_prediction_are_produced() -> None:
    produced = torch.tensor([0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1], dtype=torch.bool)
    # Row 1 is the prompt's last: from its state and root 2 it predicts 3, then 4.
    assert reach(produced).tolist() == [0, 2, 1, 0, 0, 0, 0, 0, 1, 0, 0]
    assert reach(torch.ones(4, dtype=torch.bool)).tolist() == [2, 1, 0, 0]
    assert reach(torch.zeros(1, dtype=torch.bool)).tolist() == [0]


def sequence(n: int, produced_from: int) -> FeatureSequence:
    ids = torch.arange(100, 100 + n)
    return FeatureSequence(str(n), "", ids, torch.arange(n) >= produced_from, torch.full((n, 4), float(n)).bfloat16())


def test_rows_hold_sequences_side_by_side() -> None:
    batch = collate([[sequence(3, 1), sequence(4, 2)], [sequence(12, 9)]], 9)
    assert batch.tokens[0].tolist() == [100, 101, 102, 100, 101, 102, 103, 0, 0]
    assert batch.documents[0].tolist() == [0, 0, 0, 1, 1, 1, 1, -1, -1]
    assert batch.positions[0].tolist() == [0, 1, 2, 0, 1, 2, 3, 0, 0]
    assert batch.reach[0].tolist() == [1, 0, 0, 0, 1, 0, 0, 0, 0]
    assert batch.states[0, :, 0].tolist() == [3, 3, 3, 4, 4, 4, 4, 0, 0]
    assert batch.tokens[1].tolist() == list(range(100, 109)) and not batch.reach[1].any()
    assert batch.ahead(0)[0].tolist() == [101, 102, 100, 101, 102, 103, 0, 0, 0]
    assert batch.ahead(2)[0].tolist() == [100, 101, 102, 103, 0, 0, 0, 0, 0]
