from __future__ import annotations

import pytest
import torch

from slipstream_kernels.models.gpu.forward.staged_copies import StagedCopies

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(1000, 24), (7,), (3, 8, 16), (1, 200), (0, 4), ()])
def test_what_is_copied_in_parts_arrives_whole(shape: tuple[int, ...], device: str) -> None:
    copies = StagedCopies(torch.device(device), 512)
    for kind in (torch.bfloat16, torch.float32):
        source = torch.randn(shape).to(kind)
        target = torch.zeros(shape, dtype=torch.bfloat16, device=device)
        copies.copy(source, target)
        assert torch.equal(target.cpu(), source.bfloat16())


@pytest.mark.parametrize("device", DEVICES)
def test_neither_end_need_lie_in_one_piece(device: str) -> None:
    source = torch.randn(64, 40, dtype=torch.bfloat16)[:, 8:24]
    target = torch.zeros(128, 16, dtype=torch.bfloat16, device=device)
    StagedCopies(torch.device(device), 100).copy(source, target[::2])
    assert torch.equal(target[::2].cpu(), source)
    assert not target[1::2].any()
