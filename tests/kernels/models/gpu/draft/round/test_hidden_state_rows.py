"""States are gathered end to end."""

import torch

from slipstream_kernels.models.gpu.draft.round.hidden_state_rows import HiddenStateInputs


def test_parts_lie_end_to_end():
    target = torch.zeros(8, 4, dtype=torch.bfloat16)
    parts = [torch.full((rows, 4), float(rows), dtype=torch.bfloat16) for rows in (2, 1, 3)]
    HiddenStateInputs(target).load(parts)
    assert target[:, 0].tolist() == [2, 2, 1, 3, 3, 3, 0, 0]
