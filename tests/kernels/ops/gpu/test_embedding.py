from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.embedding import embed, embed_reference


@pytest.mark.parametrize("hidden", [16, 48, 2064])
def test_looks_up_known_and_pending_tokens(device: torch.device, hidden: int) -> None:
    torch.manual_seed(hidden)
    table = torch.randn(50, hidden, dtype=torch.bfloat16, device=device)
    tokens = torch.tensor([3, -1, 49, -1, 0], dtype=torch.int32, device=device)
    lines = torch.tensor([1, 2, 0, 0, 1], dtype=torch.int32, device=device)
    last = torch.tensor([7, 8, 9], dtype=torch.int32, device=device)
    expected = torch.tensor([3, 9, 49, 7, 0], dtype=torch.int32, device=device)
    for op in (embed, embed_reference):
        out = torch.full((5, hidden), torch.nan, dtype=torch.bfloat16, device=device)
        resolved = torch.full((5,), -7, dtype=torch.int32, device=device)
        op(tokens, lines, last, table, out, resolved)
        assert torch.equal(resolved, expected)
        assert torch.equal(out, table[expected.long()])


def test_ids_outside_the_vocabulary_stay_inside_the_table(device: torch.device) -> None:
    table = torch.randn(10, 16, dtype=torch.bfloat16, device=device)
    tokens = torch.tensor([10, 2**31 - 1, -5, -1], dtype=torch.int32, device=device)
    lines = torch.zeros(4, dtype=torch.int32, device=device)
    last = torch.tensor([-3], dtype=torch.int32, device=device)
    for op in (embed, embed_reference):
        out = torch.full((4, 16), torch.nan, dtype=torch.bfloat16, device=device)
        resolved = torch.full((4,), -7, dtype=torch.int32, device=device)
        op(tokens, lines, last, table, out, resolved)
        assert resolved.tolist() == [9, 9, 0, 0]
        assert torch.equal(out, table[[9, 9, 0, 0]])
