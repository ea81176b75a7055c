"""The arrays of a round, laid out by hand."""

import numpy as np

from slipstream_kernels.models.gpu.draft.networks.draft_forward import DraftShape
from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_buckets import RoundBucket
from slipstream_kernels.models.gpu.draft.round.round_plan import RoundItem, RoundLayout, item_table

HEAD = DraftShape(layers=1, heads=8, kv_heads=1, head_dim=64, hidden=64, entries=50, features=192, shift=2)
LIMITS = DraftLimits(max_depth=3, width=10, max_context=1024, max_sessions=4)
PAGES = np.array([[7, 8, 9, 0, 0], [3, 2, 1, 5, 4], [20, 21, 22, 0, 0], [30, 31, 32, 0, 0]], np.int32)


def packed(bucket, items):
    layout = RoundLayout(bucket, HEAD, LIMITS)
    words = np.full(layout.words, 99, np.int32)
    layout.pack(*item_table(items), PAGES, words)
    return layout.views(words)


def test_a_round():
    items = [RoundItem(2, 30, 34, (5, 6, 7), 9, 3), RoundItem(0, 0, 0, (8,), 20, 2)]
    a = packed(RoundBucket(4, 16, 3), items)
    assert a.token_ids[:5].tolist() == [5, 6, 7, 8, 0]
    assert a.positions[:5].tolist() == [34, 35, 36, 0, 0]
    assert a.write_slots[:5].tolist() == [21 * 16 + 14, 21 * 16 + 15, 22 * 16, 7 * 16, -1]
    assert a.lines[:5].tolist() == [2, 2, 2, 0, 0]
    assert a.prefix_lengths[:5].tolist() == [30, 30, 30, 0, 0]
    assert a.parents[:5].tolist() == [-1, 0, 1, -1, -2]
    assert a.root_rows[:5].tolist() == [-1, -1, -1, 2, 4]
    assert a.decode_rows[:5].tolist() == [0, 1, 2, 3, -1]
    assert a.segments[:3].tolist() == [[0, 3, 2, 30], [3, 1, 0, 0], [0, 0, 0, 0]]
    assert a.item_offsets.tolist() == [0] * len(a.item_offsets)
    assert a.last_rows.tolist() == [2, 3, -1, -1]
    assert a.roots.tolist() == [0, 1, -1, -1]
    assert a.root_lines.tolist() == [2, 0, 0, 0]
    # The rows' states are at 36 and 0, their tokens one further on.
    assert a.root_positions.tolist() == [37, 1, 0, 0]
    assert a.limits.tolist() == [[9, 3], [20, 2], [0, 0], [0, 0]]
    assert a.node_positions[:, ::10].tolist() == [[37, 1, 1, 1], [38, 2, 2, 2]]
    assert a.node_choices[:, [0, 9, 10, 19]].tolist() == [[38, 38, 2, 2], [39, 39, 3, 3]]
    assert a.node_lines[::10].tolist() == [2, 0, 0, 0]
    assert a.node_prefix_lengths[::10].tolist() == [33, 1, 0, 0]
    assert a.node_decode_rows[[0, 19, 20, 39]].tolist() == [0, 19, -1, -1]
    # Eight heads share a KV head, so that eight rows share the reading of their prefix.
    assert a.node_segments[:5].tolist() == [[0, 8, 2, 33], [8, 2, 2, 33], [10, 8, 0, 1], [18, 2, 0, 1], [0, 0, 0, 0]]


def test_splits_of_long_texts_are_counted_by_segment():
    a = packed(RoundBucket(1, 16, 2), [RoundItem(1, 700, 700, (5, 6), 9, 3)])
    assert a.segments[0].tolist() == [0, 2, 1, 700]
    assert a.item_offsets[:3].tolist() == [0, 5, 5]  # 640 positions in splits of 128
    assert a.node_item_offsets[:4].tolist() == [0, 5, 10, 10]


def test_text_alone_goes_in_tiles():
    a = packed(RoundBucket(0, 32, 0), [RoundItem(1, 60, 60, tuple(range(10))), RoundItem(0, 0, 0, (1, 2))])
    assert a.write_slots[:13].tolist() == [*range(92, 96), *range(64, 70), 112, 113, -1]
    assert a.positions[:13].tolist() == [*range(60, 70), 0, 1, 0]
    # Tiles end where a block of 64 does, and hold eight rows; those of the last positions come first.
    assert a.tiles[:4].tolist() == [[4, 6, 1, 64], [0, 4, 1, 60], [10, 2, 0, 0], [0, 0, 0, 0]]
