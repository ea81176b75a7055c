from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from slipstream_kernels.models.gpu.batch.buckets import Bucket, Buckets
from slipstream_kernels.models.gpu.batch.device_plan import PlanLayout
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.outcome_plan import may_select
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.token_tree import TokenTree
from support.gpu_passes import Span, pass_of

LIMITS = GpuLimits(max_running=5, max_nodes=64, step_nodes=200, prefill_chunk=64, num_pages=400, max_context=1024)
SEGMENT_ROWS = 64 // 3


def layout_of(bucket: Bucket) -> PlanLayout:
    return PlanLayout(bucket, LIMITS, columns=64, tile_rows=64 // 3, group=3, kv_heads=1)


def with_choices() -> PassPlan:
    """Of items of 1, 41, 11 and 1 rows the last three are settled by the device."""
    trees = [TokenTree((0,) * size, (-1,) * size) for size in (0, 40, 10, 0)]
    plan = pass_of(LIMITS, [Span(line, [-1], 90, range(20), tree) for line, tree in enumerate(trees)])
    rows = np.cumsum([0, 1, 41, 11])
    choices = [[item, 7 - item, 90, rows[item], len(trees[item]) + 1, item, -item, 0] for item in (1, 2, 3)]
    return replace(plan, choices=np.array(choices, np.int32))


def test_choices_are_told_the_segments_of_their_rows() -> None:
    plan = with_choices()
    bucket = Buckets(LIMITS).find(plan.rows, len(plan.logit_rows), has_trees=True, has_prefill=False)
    layout = layout_of(bucket)
    assert layout.choices is not None
    assert layout.max_words == layout.choices.end > layout.choices.sent_end > layout.words == layout.choices.first
    words = np.full(layout.max_words, 12345, np.int32)
    layout.pack(plan, np.zeros((0, 2), np.int32), words)
    layout.choices.pack(plan, words)
    host, segments = layout.choices.views(words), layout.views(words).segments
    assert np.array_equal(host.choices[:3, :7], plan.choices[:, :7])
    assert (host.choices[3:] == 0).all()
    assert (host.nodes == 12345).all()
    assert len(host.nodes) == bucket.rows
    assert host.choices[:3, 7].tolist() == [1, 1 + -(-41 // SEGMENT_ROWS), 2 + -(-41 // SEGMENT_ROWS)]
    assert np.array_equal(segments[host.choices[:3, 7], 0], plan.choices[:, 3])


def test_more_than_there_is_room_for_is_refused() -> None:
    plan = with_choices()
    plan = replace(plan, choices=np.concatenate([plan.choices, plan.choices]))
    layout = layout_of(Bucket(64, 64, has_trees=True, has_prefill=False))
    assert layout.choices is not None
    with pytest.raises(ValueError, match="6 requests to choose for, there is room for 5"):
        layout.choices.pack(plan, np.zeros(layout.max_words, np.int32))


def test_passes_without_trees_choose_nothing() -> None:
    for bucket in Buckets(LIMITS).all():
        layout = layout_of(bucket)
        assert may_select(bucket) == bucket.has_trees
        assert (layout.choices is None) == (layout.max_words == layout.words) != may_select(bucket)


def test_rows_that_choices_name_are_not_put_in_another_order() -> None:
    with pytest.raises(ValueError, match="must be in order"):
        with_choices().reordered()
