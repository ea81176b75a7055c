from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.gate_up import gate_up_views, interleave_gate_up, separate_gate_up


def test_gate_and_up_take_turns_in_groups_of_eight() -> None:
    weight = torch.arange(64).reshape(32, 2)
    assert interleave_gate_up(weight)[:, 0].div(2).tolist() == [
        *range(8),
        *range(16, 24),
        *range(8, 16),
        *range(24, 32),
    ]


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_inverse_along_each_dimension(dim: int) -> None:
    parts = torch.randn(48, 80)
    ordered = interleave_gate_up(parts) if dim == 0 else interleave_gate_up(parts.T).T
    assert torch.equal(separate_gate_up(ordered, dim), parts)


def test_views_write_through() -> None:
    gate, up = torch.randn(2, 24, 5)
    ordered = torch.full((48, 5), torch.nan)
    for view, part in zip(gate_up_views(ordered), (gate, up), strict=True):
        view.copy_(part.view(view.shape))
    assert torch.equal(ordered, interleave_gate_up(torch.cat([gate, up])))


def test_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="groups of 8, not 12"):
        gate_up_views(torch.empty(24, 3))
