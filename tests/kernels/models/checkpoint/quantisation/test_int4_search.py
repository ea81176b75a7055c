"""The kernel that looks for scales of groups gives the bits of its twin."""

from __future__ import annotations

import pytest
import torch

from slipstream_kernels.models.checkpoint.quantisation import int4_search
from slipstream_kernels.models.checkpoint.quantisation.int4_search import nearest_int4, nearest_int4_reference


def same(wide: torch.Tensor, scales: torch.Tensor) -> bool:
    got, expected = nearest_int4(wide, scales), nearest_int4_reference(wide, scales)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("elements", [32, 64, 128])
@pytest.mark.parametrize("size", [1e-30, 0.02, 1e15])
def test_the_bits_of_the_twin(elements: int, size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int4_search, "_KERNEL_GROUPS", 100)  # several tasks, and one that is not full
    generator = torch.Generator().manual_seed(elements)
    wide = torch.randn(333, elements, generator=generator) * size
    wide[0], wide[1, 1:], wide[2] = 0, 0, wide[2].abs()
    scales = wide.abs().amax(1, keepdim=True).clamp_min(1e-37) / 7 * torch.linspace(1.3, 0.5, 31)
    assert same(wide, scales)


def test_halves_go_to_the_even_number_and_equal_scales_to_the_first() -> None:
    wide = torch.tensor([[-9.0, -8.5, -7.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 6.5, 7.5, 8.5, 100, -100, 0, 3]])
    scales, codes = nearest_int4(wide, torch.ones(1, 2))
    assert scales.tolist() == [1] and same(wide, torch.ones(1, 2))
    assert codes.tolist() == [[-8, -8, -8, -2, -2, 0, 0, 2, 2, 6, 7, 7, 7, -8, 0, 3]]
    assert nearest_int4(torch.zeros(1, 32), torch.tensor([[3.0, 2.0, 1.0]]))[0].tolist() == [3]
