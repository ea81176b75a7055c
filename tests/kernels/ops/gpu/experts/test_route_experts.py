from __future__ import annotations

import pytest
import torch

from slipstream_kernels.ops.gpu.experts.route_experts import route_experts, route_experts_reference


def routed(op, scores: torch.Tensor, experts: int, chosen: int, *, normalised: bool, slots=None, sigmoid=False):
    ids = torch.full((len(scores), chosen), -1, dtype=torch.int32, device=scores.device)
    weights = torch.full((len(scores), chosen), torch.nan, device=scores.device)
    op(scores, slots, ids, weights, experts=experts, normalised=normalised, sigmoid=sigmoid)
    return ids, weights


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(("experts", "chosen"), [(1, 1), (7, 3), (32, 4), (60, 8)])
def test_matches_its_twin(device: torch.device, experts: int, chosen: int, normalised: bool) -> None:
    """Among scores of which many are equal."""
    torch.manual_seed(0)
    scores = (torch.randn(9, experts + 1, device=device) * 3).round() / 2
    scores[:, -1] = 100
    ids, weights = routed(route_experts, scores, experts, chosen, normalised=normalised)
    expected = routed(route_experts_reference, scores, experts, chosen, normalised=normalised)
    assert torch.equal(ids, expected[0])
    torch.testing.assert_close(weights, expected[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("experts", "chosen"), [(16, 1), (7, 3)])
def test_a_weight_may_be_a_sigmoid(device: torch.device, experts: int, chosen: int) -> None:
    torch.manual_seed(0)
    scores = (torch.randn(9, experts + 1, device=device) * 3).round() / 2
    scores[4, 2], scores[5, 1] = torch.nan, 200.0
    ids, weights = routed(route_experts, scores, experts, chosen, normalised=False, sigmoid=True)
    expected = routed(route_experts_reference, scores, experts, chosen, normalised=False, sigmoid=True)
    assert torch.equal(ids, expected[0]) and weights[4].isnan().all() and weights[5].max() == 1
    torch.testing.assert_close(weights, expected[1], rtol=1e-5, atol=1e-7, equal_nan=True)
    sound = weights[weights == weights]
    assert sound.numel() == 8 * chosen and sound.min() > 0 and sound.max() <= 1


@pytest.mark.parametrize("op", [route_experts, route_experts_reference])
def test_what_is_no_number_leaves_no_weight(device: torch.device, op) -> None:
    scores = torch.zeros(3, 4, device=device)
    scores[0] = torch.nan
    scores[1, 2] = torch.nan
    ids, weights = routed(op, scores, 4, 3, normalised=True)
    assert ids.tolist() == [[0, 1, 2], [0, 1, 3], [0, 1, 2]]
    assert weights[:2].isnan().all() and torch.allclose(weights[2], torch.tensor(1 / 3, device=device))


@pytest.mark.parametrize("op", [route_experts, route_experts_reference])
def test_padding_wakes_no_expert(device: torch.device, op) -> None:
    scores = torch.randn(3, 5, device=device)
    scores[1] = torch.nan
    plain = routed(op, scores, 5, 2, normalised=True)
    ids, weights = routed(
        op, scores, 5, 2, normalised=True, slots=torch.tensor([7, -1, 0], dtype=torch.int32).to(device)
    )
    assert ids[1].tolist() == [5, 5] and weights[1].tolist() == [0, 0]
    assert torch.equal(ids[::2], plain[0][::2]) and torch.equal(weights[::2], plain[1][::2])
