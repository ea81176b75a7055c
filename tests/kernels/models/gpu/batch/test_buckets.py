from __future__ import annotations

import pytest

from slipstream_kernels.models.gpu.batch.buckets import Buckets
from slipstream_kernels.models.gpu.batch.limits import GpuLimits


@pytest.mark.parametrize(
    "limits",
    [
        GpuLimits(),
        GpuLimits(max_running=1, max_nodes=1, prefill_chunk=1),
        GpuLimits(max_running=1, step_nodes=1, prefill_chunk=7),
        GpuLimits(max_running=256, step_nodes=0, prefill_chunk=2048),
        GpuLimits(max_running=3, max_nodes=4, prefill_chunk=100),
    ],
)
@pytest.mark.parametrize("plain_prefill", [False, True])
def test_every_pass_within_the_limits_finds_a_bucket_of_the_list(limits: GpuLimits, plain_prefill: bool) -> None:
    buckets = Buckets(limits, plain_prefill=plain_prefill)
    everything = set(buckets.all())
    trees = (False, True) if limits.scratch_slots else (False,)
    for drafted in trees:
        for rows in range(1 + drafted, (limits.max_decode_rows if drafted else limits.max_running) + 1):
            found = buckets.find(rows, rows, has_trees=drafted, has_prefill=False)
            assert found in everything and found.rows >= rows and found.logits >= rows
            assert found.has_trees == drafted and not found.has_prefill
        for rows in range(2, (limits.max_rows if drafted else limits.prefill_chunk + limits.max_running) + 1, 5):
            for logits in {0, 1, min(rows, limits.max_decode_rows)}:
                found = buckets.find(rows, logits, has_trees=drafted, has_prefill=True)
                assert found in everything and found.rows >= rows and found.logits >= logits
                assert found.has_trees >= drafted and found.has_prefill
                assert not plain_prefill or found.has_trees == drafted


def test_passes_of_tiles_only_are_large_ones_without_trees_and_prefill() -> None:
    limits = GpuLimits(max_running=100, step_nodes=20, prefill_chunk=64)
    buckets = Buckets(limits, tiled_rows=32)
    listed = [bucket for bucket in buckets.all() if bucket.tiles_only]
    assert [bucket.rows for bucket in listed] == [100, 96, 64, 48, 32]
    for rows in range(1, 101):
        found = buckets.find(rows, rows, has_trees=False, has_prefill=False, fits_tiles=True)
        assert found in buckets.all() and found.tiles_only == (found.rows >= 32)
        assert not buckets.find(rows, rows, has_trees=False, has_prefill=False).tiles_only
    assert not any(bucket.tiles_only for bucket in Buckets(limits).all())


def test_passes_with_trees_have_tiles_where_requests_are_many() -> None:
    buckets = Buckets(GpuLimits(max_running=20, step_nodes=80, prefill_chunk=64), tiled_trees=12)
    listed = [bucket for bucket in buckets.all() if bucket.tiles_only]
    assert [bucket.rows for bucket in listed if not bucket.has_prefill] == [100, 96, 64, 48, 32, 24, 16]
    assert all(bucket.has_trees for bucket in listed)
    for rows in range(2, 101):
        found = buckets.find(rows, rows, has_trees=True, has_prefill=False, fits_tiles=rows > 12)
        assert found in buckets.all() and found.tiles_only == (rows > 12)
    assert not buckets.find(16, 16, has_trees=False, has_prefill=False, fits_tiles=True).tiles_only
    for rows, logits in ((20, 16), (70, 20), (164, 100)):
        found = buckets.find(rows, logits, has_trees=True, has_prefill=True, fits_tiles=True)
        assert found in listed and found.rows >= rows and found.logits >= logits
    assert not buckets.find(70, 20, has_trees=False, has_prefill=True, fits_tiles=False).tiles_only


@pytest.mark.parametrize("plain_prefill", [False, True])
def test_without_trees_a_pass_has_a_row_of_each_request_beside_prompts(plain_prefill: bool) -> None:
    limits = GpuLimits(max_running=100, step_nodes=4032, prefill_chunk=2048)
    buckets = Buckets(limits, plain_prefill=plain_prefill, tiled_rows=16)
    plain = [bucket for bucket in buckets.all() if not bucket.has_trees]
    assert max(bucket.rows for bucket in plain if not bucket.has_prefill) == 100
    assert max((bucket.rows for bucket in plain if bucket.has_prefill), default=2148) == 2148
    assert max(bucket.rows for bucket in buckets.all() if not bucket.has_prefill) == 4132
    with pytest.raises(ValueError, match="a pass of 101 rows, 101 logits, no trees is larger than 100 rows"):
        buckets.find(101, 101, has_trees=False, has_prefill=False)


def test_padding_is_bounded() -> None:
    buckets = Buckets(GpuLimits(max_running=256, step_nodes=512, prefill_chunk=2048))
    for rows in range(1, 769):
        drafted = rows > 256
        assert buckets.find(rows, 1, has_trees=drafted, has_prefill=False).rows <= max(2 * rows, 16)
    assert buckets.find(2048 + 9, 10, has_trees=False, has_prefill=True).rows == 2048 + 16
    assert buckets.find(1, 1, has_trees=False, has_prefill=False).rows == 1


def test_larger_passes_are_refused() -> None:
    buckets = Buckets(GpuLimits(max_running=4, step_nodes=0, prefill_chunk=64))
    for rows, logits, drafted, prefill in (
        (5, 1, False, False),
        (70, 1, False, True),
        (8, 5, False, True),
        (2, 2, True, False),
    ):
        with pytest.raises(ValueError, match=f"a pass of {rows} rows, {logits} logits"):
            buckets.find(rows, logits, has_trees=drafted, has_prefill=prefill)


def test_largest_first() -> None:
    rows = [bucket.rows for bucket in Buckets(GpuLimits()).all()]
    assert rows == sorted(rows, reverse=True) and len(rows) < 120


@pytest.mark.parametrize(
    ("field", "value"), [("max_running", 0), ("max_nodes", 65), ("page_size", 65), ("memory_utilization", 1.1)]
)
def test_limits_are_checked(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}, must be from"):
        GpuLimits(**{field: value})
