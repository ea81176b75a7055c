from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.page_indices import page_indices, page_indices_reference


@pytest.mark.parametrize("op", [page_indices, page_indices_reference])
def test_pages_lie_end_to_end(device: torch.device, op) -> None:
    table = torch.arange(3 * 1500, dtype=torch.int32, device=device).view(3, 1500)
    lines = torch.tensor([2, -1, 1, 2], dtype=torch.int32, device=device)
    starts = torch.tensor([0, 1025, 1026, 1026, 1029], dtype=torch.int32, device=device)
    indices = torch.full((1040,), -7, dtype=torch.int32, device=device)
    op(table, lines, starts, indices)
    expected = [*table[2, :1025].tolist(), 0, *table[2, :3].tolist(), *[-7] * 11]
    assert indices.tolist() == expected


@pytest.mark.parametrize("op", [page_indices, page_indices_reference])
def test_pages_beyond_the_table_are_the_first(device: torch.device, op) -> None:
    table = torch.tensor([[5, 6, 7], [8, 9, 10]], dtype=torch.int32, device=device)
    indices = torch.full((5,), -7, dtype=torch.int32, device=device)
    starts = torch.tensor([0, 5], dtype=torch.int32, device=device)
    op(table, torch.tensor([0], dtype=torch.int32, device=device), starts, indices)
    assert indices.tolist() == [5, 6, 7, 0, 0]
