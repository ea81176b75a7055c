from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.experts.count_awake import PART, count_awake, count_awake_reference, parts_of


@pytest.mark.parametrize("op", [count_awake, count_awake_reference])
@pytest.mark.parametrize(("experts", "rows", "chosen"), [(5, 37, 3), (PART, 4, 2), (2 * PART + 1, 70, 2), (128, 1, 8)])
def test_each_layers_experts_count_once(device: torch.device, op, experts: int, rows: int, chosen: int) -> None:
    """Beside rows that are padding, whose ids are those of no expert; in the last layer all are."""
    torch.manual_seed(0)
    ids = torch.randint(0, experts + 1, (3, rows, chosen), dtype=torch.int32)
    ids[2] = experts
    awake = torch.full((3, parts_of(experts)), 99, dtype=torch.int32, device=device)
    op(ids.to(device), awake, experts=experts)
    met = [set(layer.flatten().tolist()) - {experts} for layer in ids]
    parts = [range(first, first + PART) for first in range(0, experts, PART)]
    assert awake.tolist() == [[len(each.intersection(part)) for part in parts] for each in met]
