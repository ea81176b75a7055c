"""A round that follows a pass on the device is the round that the host would have laid out once that pass was over."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from slipstream_kernels.models.gpu.draft.networks import draft_ops
from slipstream_kernels.models.gpu.draft.networks.draft_forward import DraftShape
from slipstream_kernels.models.gpu.draft.networks.eagle_forward import EagleForward
from slipstream_kernels.models.gpu.draft.networks.eagle_weights import random_eagle3
from slipstream_kernels.models.gpu.draft.round.draft_round import DraftRound
from slipstream_kernels.models.gpu.draft.round.limits import DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_buckets import RoundBucket
from slipstream_kernels.models.gpu.draft.round.round_plan import RoundItem, RoundLayout, item_table
from slipstream_kernels.models.gpu.draft.round.target_pass import TargetPass
from slipstream_kernels.ops.gpu.sampling_table import pack_line
from slipstream_kernels.ops.gpu.tree_walk import RESULT_WIDTH
from slipstream_kernels.ops.rope import Rope

TREES = DraftLimits(max_depth=3, width=2, max_tokens=512, max_context=256, max_sessions=4, chunk=64)
FEATURES = 192
ROWS = 4
"""Laid out for each session: a path of three nodes and the token behind it."""
CACHED = (20, 61, 0)
"""Rows of text in the pages by session; the second ends just below a block of attention."""
GAP = 5


@pytest.fixture(scope="module", params=["trees", "chains"])
def draft(request):
    weights = random_eagle3(
        hidden=64, intermediate=96, heads=2, kv_heads=1, head_dim=64, vocab=128, entries=80, device="cpu"
    )
    limits = TREES if request.param == "trees" else replace(TREES, width=1)
    made = DraftRound(EagleForward(weights, draft_ops.twins()), limits, rope=Rope(1e4))
    for line in range(len(CACHED)):
        made.set_pages(line, 0, range(line * 8, line * 8 + 8))
        made.tables.set_line(line, pack_line(**[{}, {"temperature": 0.8, "seed": 5, "top_k": 9}][line % 2]))
    return made


def outcome(tokens, accepted):
    """Of a pass that accepted so many nodes, whose first tokens are known."""
    row = np.full(RESULT_WIDTH, -7, np.int32)
    row[0] = accepted
    row[66 : 66 + len(tokens)] = tokens
    return torch.from_numpy(row)


@pytest.mark.parametrize(("accepted", "filtered"), [((2,), False), ((0, 1), True), ((3, 0, 7), True)])
def test_trees_are_those_of_the_text_that_was_decided(draft, accepted, filtered):
    """Where nothing was written, keys, values and states are no numbers."""
    pages = draft.limits.num_pages * 16
    for kept in (draft._kv.keys, draft._kv.values):
        kept[:, :, :pages] = float("nan")
    laid, known, asked, rows, states = [], [], [], [], []
    source = torch.full((3 * (ROWS * FEATURES + GAP),), float("nan"), dtype=torch.bfloat16)
    for line, count in enumerate(accepted):
        cached, left = CACHED[line], min(count + 1, ROWS)
        generator = torch.Generator().manual_seed(line)
        tokens = torch.randint(128, (cached + left,), generator=generator).tolist()
        features = torch.randn(cached + left, FEATURES, generator=generator).bfloat16()
        if cached:
            draft.compute_text([RoundItem(line, 0, 2, tokens[:cached])], [features[:cached]])
        place = (2 - line) * (ROWS * FEATURES + GAP) + GAP
        source[place : place + left * FEATURES] = features[cached:].flatten()
        asked.append((len(accepted) - 1 - line, place))
        rows.append(outcome(tokens[cached:], count))
        states.append(features[cached:])
        laid.append(RoundItem(line, cached, cached + 2, (0,) * ROWS, 9, 3))
        known.append(laid[-1]._replace(token_ids=tokens[cached:]))
    ticket = draft.follow(laid, asked, torch.stack(rows[::-1]), source, ready=None, filtered=filtered)
    assert ticket.states_read is None
    followed = ticket.trees()
    written = ~draft._kv.keys[0, 0, : 3 * 128].isnan().any(1).view(3, 128)
    assert written.sum(1)[: len(accepted)].tolist() == [item.cached + len(item.token_ids) for item in known]
    assert followed == draft.draft(known, states, filtered=filtered)
    assert all(len(tree) >= 3 for tree in followed)


def test_arrays_are_those_of_the_text_that_was_decided():
    """Of nodes all of them, of text those of the rows that stay."""
    shape = DraftShape(layers=1, heads=8, kv_heads=1, head_dim=64, hidden=64, entries=50, features=24, shift=2)
    limits = DraftLimits(max_depth=14, width=10, max_context=1024, max_sessions=4)
    layout = RoundLayout(RoundBucket(4, 64, 14), shape, limits)
    pages = np.random.default_rng(0).permutation(256).astype(np.int32).reshape(4, 64)
    known = [RoundItem(2, 700, 700, [5] * 4, 9, 3), RoundItem(0, 63, 70, [6], 20, 2), RoundItem(1, 3, 3, [7] * 9, 5, 3)]
    laid = [item._replace(token_ids=[0] * rows) for item, rows in zip(known, (12, 15, 9), strict=True)]
    results = torch.stack([outcome(item.token_ids, len(item.token_ids) - 1) for item in known])
    ours, theirs = (np.full(layout.words, 99, np.int32) for _ in range(2))
    layout.pack(*item_table(laid), pages, ours)
    asked = np.array([(row, 100 * row) for row in range(3)], np.int64)
    layout.pack_follows(item_table(laid)[0], asked, layout.views(ours).follows)
    followed = TargetPass(asked, results, torch.zeros(900, dtype=torch.bfloat16))
    settled = layout.views(torch.from_numpy(ours))
    followed.settle(draft_ops.twins(), settled, layout.segment_rows, 10, torch.zeros(64, 24).bfloat16(), None)
    layout.pack(*item_table(known), pages, theirs)
    layout.pack_follows(item_table(known)[0], asked[:0], layout.views(theirs).follows)
    expected = layout.views(theirs)
    assert not expected.follows.any()
    for name in ("roots", "root_lines", "root_positions", "limits"):
        assert getattr(settled, name).tolist() == getattr(expected, name).tolist(), name
    for name in ("positions", "choices", "lines", "prefix_lengths", "decode_rows", "segments", "item_offsets"):
        assert getattr(settled, f"node_{name}").tolist() == getattr(expected, f"node_{name}").tolist(), name
    first, begin, listed = 0, 0, []
    for item, other in zip(known, laid, strict=True):
        rows = range(len(item.token_ids))
        for name in ("token_ids", "positions", "write_slots", "lines", "prefix_lengths", "parents"):
            held, wanted = getattr(settled, name), getattr(expected, name)
            assert [held[first + row] for row in rows] == [wanted[begin + row] for row in rows], name
        listed += [first + row for row in rows]
        first, begin = first + len(other.token_ids), begin + len(rows)
        assert settled.last_rows.tolist().count(listed[-1]) == 1
    assert [row for row in settled.decode_rows.tolist() if row >= 0] == listed
    shared = [first + row for first, rows, _, _ in settled.segments.tolist() for row in range(rows)]
    assert shared == listed
    assert settled.item_offsets[-1] == expected.item_offsets[-1]


def test_what_cannot_follow_is_refused(draft):
    item = RoundItem(0, 0, 0, (0,) * ROWS, 9, 3)
    results, source = torch.zeros(2, RESULT_WIDTH, dtype=torch.int32), torch.zeros(1000, dtype=torch.bfloat16)
    for items, asked, words in [
        ([item], [], "1 items .* 0 places"),
        ([item], [(2, 0)], "row 2 .* has 2"),
        ([item], [(0, 233)], "4 states of 192 numbers .* 233 on, below 1000"),
        ([item], [(0, -1)], "-1 on"),
        ([item._replace(token_ids=())], [(0, 0)], "0 rows of text .* 1 to 64"),
        ([item._replace(token_ids=(0,) * 65)], [(0, 0)], "65 rows"),
    ]:
        with pytest.raises(ValueError, match=words):
            draft.follow(items, asked, results, source, ready=None, filtered=False)
    with pytest.raises(ValueError, match="on cpu follows a pass on meta"):
        draft.follow([item], [(0, 0)], results.to("meta"), source, ready=None, filtered=False)
