from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from slipstream_kernels.models.gpu.batch.attention_tiles import fits_tiles
from slipstream_kernels.models.gpu.batch.buckets import Bucket, Buckets
from slipstream_kernels.models.gpu.batch.device_plan import PlanLayout
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.pass_plan import PassPlan
from slipstream_kernels.ops.gpu.position_splits import num_splits, own_block
from slipstream_kernels.ops.gpu.prefill_attention import prefill_tiles
from slipstream_kernels.token_tree import TokenTree
from support.gpu_passes import Span, pass_of

LIMITS = GpuLimits(
    max_running=12, max_nodes=64, step_nodes=200, prefill_chunk=500, num_pages=4000, max_context=4096, page_size=16
)
TREE = TokenTree(tuple(range(40)), (-1, *range(39)))
UPDATES = np.array([(70, 1), (5, 2)], np.int32)


def packed(plan: PassPlan, bucket: Bucket, group: int = 3, kv_heads: int = 1) -> dict[str, np.ndarray]:
    layout = PlanLayout(bucket, LIMITS, columns=64, tile_rows=64 // group, group=group, kv_heads=kv_heads)
    words = np.full(layout.words, 12345, np.int32)
    layout.pack(plan, UPDATES, words)
    host = layout.views(words)
    return {name: getattr(host, name) for name in type(host).__slots__}


def spans(count: int, *, prefill: bool, drafted: bool) -> list[Span]:
    rng = np.random.default_rng(count)
    made = []
    for line in range(count):
        start = int(rng.integers(1, 3000))
        pages = rng.permutation(4000)[:256].tolist()
        rows = int(rng.integers(2, 90)) if prefill and line % 2 else 1
        tree = TREE if drafted and line % 3 == 0 else TokenTree((), ())
        made.append(Span(line, [line] * rows, start, pages, tree, decides=line != 4))
    return made


@pytest.mark.parametrize(("prefill", "drafted"), [(False, False), (False, True), (True, False), (True, True)])
def test_every_row_is_served_once(prefill: bool, drafted: bool) -> None:
    plan = pass_of(LIMITS, spans(9, prefill=prefill, drafted=drafted)).reordered()
    bucket = Buckets(LIMITS).find(plan.rows, len(plan.logit_rows), has_trees=drafted, has_prefill=prefill)
    host = packed(plan, bucket)
    assert len(host["token_ids"]) == bucket.rows >= plan.rows
    for name in ("token_ids", "positions", "write_slots", "lines", "prefix_lengths", "parents", "root_rows"):
        assert np.array_equal(host[name][: plan.rows], getattr(plan, name))
    assert (host["write_slots"][plan.rows :] == -1).all() and (host["parents"][plan.rows :] == -2).all()
    assert np.array_equal(host["root_rows"][plan.rows :], np.arange(plan.rows, bucket.rows))
    for name, values, padding in (
        ("logit_rows", plan.logit_rows, -1), ("deciding", plan.deciding, 0), ("updates", UPDATES, -1)
    ):  # fmt: skip
        count = len(values)
        assert np.array_equal(host[name][:count], values) and (host[name][count:] == padding).all()

    decode_rows = host["decode_rows"][host["decode_rows"] >= 0]
    segments = host["segments"][host["segments"][:, 1] > 0]
    shared = np.concatenate([np.arange(first, first + rows) for first, rows, _, _ in segments])
    assert np.array_equal(decode_rows, np.arange(plan.decode_rows)) and np.array_equal(shared, decode_rows)
    assert (segments[:, 1] <= 64 // 3).all()
    for first, rows, line, prefix in segments:
        assert (plan.lines[first : first + rows] == line).all()
        assert (plan.prefix_lengths[first : first + rows] == prefix).all()
    splits = [num_splits(own_block(prefix)) if rows else 0 for _, rows, _, prefix in host["segments"]]
    assert np.array_equal(host["item_offsets"], [0, *np.cumsum(splits)])

    tiles = host["tiles"][host["tiles"][:, 1] > 0]
    expected = [tile for span in plan.prefills for tile in prefill_tiles(*span.tolist(), group=3)]
    assert sorted(map(tuple, tiles.tolist())) == sorted(expected)
    assert (np.diff(tiles[:, 3]) <= 0).all()


def test_rows_enough_to_fill_the_device_are_tiles_but_for_the_longest() -> None:
    """Eight rows of 18 heads: a row may have as many blocks as all of them have on average."""
    starts = (700, 700, 700, 700, 700, 700, 2000, 700)
    made = [Span(line, [line], start, range(256), TokenTree((), ())) for line, start in enumerate(starts)]
    plan = pass_of(LIMITS, made).reordered()
    host = packed(plan, Bucket(8, 8, has_trees=False, has_prefill=False), kv_heads=18)
    tiles = host["tiles"][host["tiles"][:, 1] > 0]
    longest = int(np.argmax(plan.positions))
    assert sorted(tiles[:, 0].tolist()) == [row for row in range(8) if row != longest]
    for row, rows, line, position in tiles:
        assert (rows, line, position) == (1, plan.lines[row], plan.positions[row])
    assert host["decode_rows"][host["decode_rows"] >= 0].tolist() == [longest]
    segments = host["segments"][host["segments"][:, 1] > 0]
    assert segments.tolist() == [[longest, 1, plan.lines[longest], plan.prefix_lengths[longest]]]
    assert not fits_tiles(plan, kv_heads=18)


def test_where_all_rows_fit_tiles_no_other_kernel_has_work() -> None:
    made = [Span(line, [line], 700 + 5 * line, range(256), TokenTree((), ())) for line in range(9)]
    plan = pass_of(LIMITS, made).reordered()
    assert fits_tiles(plan, kv_heads=18)
    host = packed(plan, Bucket(9, 9, has_trees=False, has_prefill=False, tiles_only=True), kv_heads=18)
    assert (host["decode_rows"] == -1).all() and not host["segments"].any() and not host["item_offsets"].any()
    assert sorted(host["tiles"][:, 0].tolist()) == list(range(9))
    prefilled = pass_of(LIMITS, [dataclasses.replace(made[0], tokens=[1, 2]), *made[1:]]).reordered()
    assert not fits_tiles(prefilled, kv_heads=18)
    assert not fits_tiles(plan, kv_heads=8)


def test_trees_that_fit_tiles_lie_in_segments() -> None:
    made = [dataclasses.replace(span, start=700) for span in spans(12, prefill=False, drafted=True)]
    plan = pass_of(LIMITS, made).reordered()
    assert fits_tiles(plan, kv_heads=18) and not fits_tiles(plan, kv_heads=7)
    uneven = pass_of(LIMITS, [dataclasses.replace(made[0], start=3000), *made[1:]]).reordered()
    prefilled = pass_of(LIMITS, [*made[:-1], dataclasses.replace(made[-1], tokens=[1, 2])]).reordered()
    assert not fits_tiles(uneven, kv_heads=18) and fits_tiles(prefilled, kv_heads=18)
    found = Buckets(LIMITS, tiled_trees=4).find(
        plan.rows, plan.rows, has_trees=True, has_prefill=False, fits_tiles=True
    )
    segments = packed(plan, found, group=3)["segments"]
    assert found.tiles_only and len(segments) < found.rows
    shared = [np.arange(first, first + rows) for first, rows, _, _ in segments]
    assert np.array_equal(np.concatenate(shared), np.arange(plan.rows))


@pytest.mark.parametrize("group", [1, 3, 4, 8])
def test_tiles_never_run_out(group: int) -> None:
    """The most awkward prompts: as many as can be, each crossing a bound."""
    made = [Span(line, [1] * rows, 63 + 64 * line, range(256)) for line, rows in enumerate([2] * 6 + [66] * 6)]
    plan = pass_of(LIMITS, made)
    tiles = packed(plan, Bucket(plan.rows, 12, has_trees=True, has_prefill=True), group)["tiles"]
    assert tiles[:, 1].sum() == plan.rows


def test_a_plan_larger_than_its_bucket_is_refused() -> None:
    plan = pass_of(LIMITS, spans(3, prefill=False, drafted=False))
    with pytest.raises(ValueError, match="cannot assign slice"):
        packed(plan, Bucket(2, 2, has_trees=False, has_prefill=False))


def test_nothing_but_padding() -> None:
    for bucket in Buckets(LIMITS).all():
        host = packed(PassPlan.empty(), bucket)
        assert all(not host[name][:, 1].any() for name in ("deciding", "segments", "tiles"))
        assert all((host[name] == -1).all() for name in ("logit_rows", "decode_rows", "write_slots"))
        assert not host["item_offsets"].any()


def test_reordering_moves_rows_and_all_that_points_to_them() -> None:
    plan = pass_of(LIMITS, spans(9, prefill=True, drafted=True))
    moved = plan.reordered()
    assert not plan.in_order and moved.in_order

    def described(plan: PassPlan) -> list[tuple[int, ...]]:
        """What each logit is of, by slots, which are unique."""
        slots = plan.write_slots
        return [
            (slots[row], plan.token_ids[row], plan.positions[row], plan.parents[row], slots[plan.root_rows[row]])
            for row in plan.logit_rows
        ]

    assert described(plan) == described(moved)
    nodes = moved.parents > -2
    assert (moved.parents[nodes] < np.arange(moved.rows)[nodes] - moved.root_rows[nodes] - 1).all()
    for before, after in zip(plan.decodes, moved.decodes, strict=True):
        own = [slice(first, first + rows) for first, rows, _, _ in (before, after)]
        assert np.array_equal(plan.write_slots[own[0]], moved.write_slots[own[1]])


def test_spans_must_cover_the_rows() -> None:
    plan = PassPlan.chunk(np.arange(5, dtype=np.int32), line=0, start=0, slots=np.arange(5, dtype=np.int32))
    plan.prefills[0, 1] = 4
    with pytest.raises(ValueError, match="spans hold 4 rows of 5"):
        plan.reordered()
