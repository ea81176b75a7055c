from __future__ import annotations

import torch

from slipstream_kernels.ops.gpu.draft_trees import COUNT, draft_trees, frontier_rows


def test_trees_begin_empty(device: torch.device) -> None:
    trees = draft_trees(3, 2, device)
    assert trees.result[:, COUNT].eq(0).all()
    assert trees.frontier.tolist() == [[-1, -1]] * 3


def test_rows_of_all_depths_are_numbered_through_and_share_their_places(device: torch.device) -> None:
    depths = frontier_rows(3, 2, 4, device)
    assert [rows.first_row for rows in depths] == [0, 6, 12]
    for rows in depths:
        rows.places.fill_(rows.first_row)
        assert rows.logit_rows.eq(-1).all()
        assert rows.paths[:, 0].tolist() == list(range(rows.first_row, rows.first_row + 6))
    assert depths[0].all_places.tolist() == [0] * 6 + [6] * 6 + [12] * 6
    assert frontier_rows(3, 2, 1, device) == ()
