from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream_kernels.ops.experts.grouping import ITEM, combine, combine_reference, group_pairs, most_items
from slipstream_kernels.ops.linear import ROW_GROUP


@given(
    ids=st.lists(st.integers(0, 6), max_size=40).map(lambda ids: np.array(ids, np.int32)),
    more=st.integers(0, 3 * ROW_GROUP),
)
@settings(max_examples=40)
def test_every_pair_has_a_place_among_its_experts(ids: np.ndarray, more: int) -> None:
    ids = np.concatenate([ids, np.full(more, 3, np.int32)])
    starts, places = np.zeros(7, np.int32), np.full(len(ids), -1, np.int32)
    items = np.full((most_items(len(ids), 7), ITEM), -1, np.int32)
    addresses = (array.ctypes.data for array in (starts, places, items))
    assert group_pairs(ids.ctypes.data, len(ids), 7, *addresses) == len(set(ids.tolist()))
    assert sorted(places) == list(range(len(ids)))
    found = np.full(len(ids), -1)
    for expert, first, rows in items:
        assert 0 <= rows <= ROW_GROUP and (found[first : first + rows] == -1).all()
        found[first : first + rows] = expert
    assert np.array_equal(found[places], ids)


@pytest.mark.parametrize("is_shared", [True, False])
def test_sums_match_float64(is_shared: bool) -> None:
    rng = np.random.default_rng(0)
    outputs, x, shared = (rng.normal(size=(rows, 40)).astype(np.float32) for rows in (27, 9, 9))
    places, weights = rng.permutation(27).astype(np.int32).reshape(9, 3), rng.random((9, 3), np.float32)
    scores = rng.normal(size=9).astype(np.float32) * 3
    more = (shared, scores) if is_shared else ()
    expected = torch.tensor(x).double()
    arguments = [torch.tensor(each).double() for each in (outputs, places, weights)]
    combine_reference(*arguments, expected, *(torch.tensor(each).double() for each in more))
    combine(outputs, places, weights, x, *more)
    np.testing.assert_allclose(x, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("is_shared", [True, False])
def test_all_may_be_added_as_it_is(is_shared: bool) -> None:
    rng = np.random.default_rng(0)
    outputs, x, shared = (rng.normal(size=(rows, 40)).astype(np.float32) for rows in (27, 9, 9))
    places = rng.permutation(27).astype(np.int32).reshape(9, 3)
    more = (shared,) if is_shared else ()
    expected = torch.tensor(x).double()
    doubles = (torch.tensor(each).double() for each in more)
    combine_reference(torch.tensor(outputs).double(), torch.tensor(places), None, expected, *doubles)
    combine(outputs, places, None, x, *more)
    np.testing.assert_allclose(x, expected.numpy(), rtol=1e-5, atol=1e-6)
