"""Sizes and plans of rounds that start from one state each."""

import numpy as np
import pytest

from slipstream_kernels.models.gpu.draft.round.hidden_state_plan import (
    HiddenStateBucket,
    HiddenStateBuckets,
    HiddenStateItem,
    HiddenStateLayout,
    HiddenStateLimits,
)

LIMITS = HiddenStateLimits(max_depth=3, width=2, max_sessions=5)


@pytest.mark.parametrize("independent", [True, False])
def test_every_bucket_that_is_found_is_captured(independent):
    buckets = HiddenStateBuckets(LIMITS, independent=independent)
    every = buckets.all()
    assert len(set(every)) == len(every)
    found = {
        buckets.find(sessions, levels, filtered=filtered, penalised=penalised)
        for sessions in range(1, 6)
        for levels in range(1, 4)
        for filtered in (False, True)
        for penalised in (False, True)
    }
    assert found == set(every)
    assert every == sorted(every, key=lambda bucket: -bucket.sessions)
    assert buckets.find(3, 1, filtered=False, penalised=False) == HiddenStateBucket(4, 1, False, not independent)
    assert buckets.find(5, 2, filtered=True, penalised=False) == HiddenStateBucket(5, 3, True, not independent)
    assert buckets.find(1, 2, filtered=False, penalised=True).by_node
    with pytest.raises(ValueError, match="6 sessions"):
        buckets.find(6, 1, filtered=False, penalised=False)


ITEMS = [HiddenStateItem(3, 40, 7, 11, 2), HiddenStateItem(0, 9, 8, 1, 1)]


def packed(bucket):
    layout = HiddenStateLayout(bucket, LIMITS.width)
    words = np.full(layout.words, 99, np.int32)
    host = layout.views(words)
    layout.pack([*ITEMS, *ITEMS], host)
    layout.pack(ITEMS, host)
    return host


def test_rows_of_all_levels_are_one_pass():
    host = packed(HiddenStateBucket(4, 3, False, by_node=False))
    assert host.token_ids.tolist() == [7, 8, 0, 0]
    assert host.limits.tolist() == [[11, 2], [1, 1], [0, 0], [0, 0]]
    assert host.rows.tolist() == [[0, 1, -1, -1], [4, -1, -1, -1], [-1, -1, -1, -1]]
    assert host.lines.tolist() == [[3, 0, 0, 0]] * 3
    assert host.positions[:, :2].tolist() == [[40, 9], [41, 10], [42, 11]]
    assert host.node_lines.size == host.node_positions.size == 0


def test_nodes_have_rows_of_their_own():
    host = packed(HiddenStateBucket(4, 3, True, by_node=True))
    assert host.rows.tolist() == [[0, 1, -1, -1]]
    assert host.lines[0, :2].tolist() == [3, 0] and host.positions[0, :2].tolist() == [40, 9]
    assert host.node_lines[:4].tolist() == [3, 3, 0, 0]
    assert host.node_positions[:, :4].tolist() == [[41, 41, 10, 10], [42, 42, 11, 11]]


@pytest.mark.parametrize(("field", "value"), [("max_depth", 0), ("max_depth", 64), ("width", 17), ("max_sessions", 0)])
def test_limits(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        HiddenStateLimits(**{"max_depth": 3, "width": 2, field: value})
