from __future__ import annotations

import numpy as np
import pytest
import torch

from slipstream_kernels.ops.experts.routing import route, route_reference


def scores_of(rows: int, experts: int, seed: int = 0) -> np.ndarray:
    """Rounded, so that many are equal, beside columns that are no expert's."""
    scores = np.random.default_rng(seed).normal(size=(rows, experts + 3)).astype(np.float32).round(1)
    scores[:, experts:] = 100
    return scores


@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize(("experts", "chosen"), [(1, 1), (8, 2), (60, 4), (128, 8), (5, 5)])
def test_matches_torch(experts: int, chosen: int, normalised: bool) -> None:
    scores = scores_of(40, experts)
    ids, weights = route(scores, experts, chosen, normalised=normalised)
    expected_ids, expected = route_reference(torch.tensor(scores).double(), experts, chosen, normalised=normalised)
    assert np.array_equal(ids, expected_ids.numpy())
    np.testing.assert_allclose(weights, expected.numpy(), rtol=1e-6)
    assert not normalised or np.allclose(weights.sum(1), 1)


@pytest.mark.parametrize(("experts", "chosen"), [(16, 1), (8, 3)])
def test_weights_may_be_sigmoids(experts: int, chosen: int) -> None:
    scores = scores_of(40, experts)
    scores[3, 1], scores[4, 1] = 200, -200
    ids, weights = route(scores, experts, chosen, normalised=False, sigmoid=True)
    twin = route_reference(torch.tensor(scores).double(), experts, chosen, normalised=False, sigmoid=True)
    assert np.array_equal(ids, twin[0].numpy())
    np.testing.assert_allclose(weights, twin[1].numpy(), rtol=1e-6)
    scores[0, 2], scores[1, 2] = np.nan, np.inf
    for found in (route(scores, experts, chosen, normalised=False, sigmoid=True)[1], twin_weights(scores, chosen)):
        assert np.isnan(found[:2]).all() and not np.isnan(found[2:]).any()


def twin_weights(scores: np.ndarray, chosen: int) -> np.ndarray:
    experts = scores.shape[1] - 3
    return route_reference(torch.tensor(scores), experts, chosen, normalised=False, sigmoid=True)[1].numpy()


def test_of_equal_scores_the_lower_ids_are_chosen() -> None:
    ids, weights = route(np.array([[1, 3, 2, 3, 3, 2]], np.float32), 6, 4, normalised=True)
    assert ids.tolist() == [[1, 2, 3, 4]]
    assert weights[0, 0] == weights[0, 2] == weights[0, 3] > weights[0, 1]


def test_rows_stand_alone() -> None:
    scores = scores_of(50, 30)
    together = route(scores, 30, 6, normalised=False)
    for row in range(50):
        alone = route(scores[row : row + 1], 30, 6, normalised=False)
        assert all(np.array_equal(one[0], all_[row]) for one, all_ in zip(alone, together, strict=True))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_leaves_no_weight(bad: float) -> None:
    """Experts are still some that there are."""
    scores = np.zeros((2, 4), np.float32)
    scores[0] = bad
    scores[1, 2] = np.nan
    ids, weights = route(scores, 4, 3, normalised=True)
    assert ids.tolist() == [[0, 1, 2], [0, 1, 3]] and np.isnan(weights).all()


def test_scores_that_are_far_apart() -> None:
    ids, weights = route(np.array([[-1e30, 1e30, 0, -np.inf]], np.float32), 4, 3, normalised=False)
    assert ids.tolist() == [[0, 1, 2]] and weights[0, 1] == 1 and weights[0, [0, 2]].max() < 1e-37


def test_wrong_numbers() -> None:
    with pytest.raises(ValueError, match="5 of 4 experts are chosen by 4 scores"):
        route(np.zeros((1, 4), np.float32), 4, 5, normalised=True)
