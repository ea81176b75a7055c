"""A pass's plan as one block of int32 words: laid out by bucket, filled on the host, read by the ops as views."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np

from slipstream_kernels.models.gpu.batch.attention_tiles import fit_a_tile, most_tiles, tiled_rows, tiles_of
from slipstream_kernels.models.gpu.batch.buckets import Bucket
from slipstream_kernels.models.gpu.batch.limits import GpuLimits
from slipstream_kernels.models.gpu.batch.outcome_plan import OutcomeLayout, may_select
from slipstream_kernels.models.gpu.batch.pass_plan import Int32, PassPlan
from slipstream_kernels.models.gpu.batch.plan_kernels import pack_pass, pad
from slipstream_kernels.models.gpu.ranks.shard import Shard
from slipstream_kernels.ops.gpu.position_splits import BLOCK, num_splits
from slipstream_kernels.ops.gpu.prefill_attention import PREFILL_COLUMNS
from slipstream_kernels.ops.gpu.prefix_attention import PREFIX_COLUMNS

_ALIGNMENT = 16
"""Words to which every array is aligned: 64 bytes."""
_ROW_FIELDS = ("token_ids", "positions", "write_slots", "lines", "prefix_lengths", "parents", "root_rows")
_SEGMENTS = (16, 128, 1024, 8192, 65536, 2**20)
"""How many segments a layout has room for: few sizes, as `prefix_attention` is compiled for each."""
_FREE_UPDATES = 256
"""Words of the tables that a pass of few rows can update."""

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class PlanArrays(Generic[A]):
    """The padded arrays of a pass, int32; fields that `PassPlan` has too mean the same.

    Padding: rows write no slot and are their own committed roots; logit rows and decode rows are -1; items, segments
    and tiles have no rows.
    """

    token_ids: A
    positions: A
    write_slots: A
    lines: A
    prefix_lengths: A
    parents: A
    root_rows: A
    logit_rows: A
    deciding: A
    decode_rows: A
    """[decode rows], rows that decode and have no tile"""
    segments: A
    """[segments, 4], of `prefix_attention`, as many as decode rows or more; where there are tiles only, of
    `tree_attention`, as many as there can be"""
    item_offsets: A
    """[segments + 1], of `prefix_attention`"""
    tiles: A
    """[tiles, 4], of `prefill_attention`; of decoding rows too, where rows enough do to fill the device"""
    updates: A
    """[updates, 2], of `write_words`"""


class PlanLayout:
    """Where the arrays of a bucket's passes lie, and how they are filled."""

    def __init__(
        self, bucket: Bucket, limits: GpuLimits, *, columns: int, tile_rows: int, group: int, kv_heads: int
    ) -> None:
        """`columns` and `group` (query heads of a KV head) say how many rows share a segment: columns // group."""
        self.bucket = bucket
        self._segment_rows = columns // group
        self._tile_rows = tile_rows
        self._splits = _splits_of(limits.max_context // BLOCK + 1)
        decode_rows = min(bucket.rows, limits.max_decode_rows)
        tiles = most_tiles(bucket.rows, min(limits.max_running, bucket.rows), tile_rows) if bucket.has_prefill else 0
        self._kv_heads = kv_heads
        self._has_tiles = bucket.has_prefill or (not bucket.has_trees and bucket.rows >= tiled_rows(kv_heads))
        if self._has_tiles:
            tiles += decode_rows
        segments = next(size for size in _SEGMENTS if size >= decode_rows)
        if bucket.has_trees and bucket.tiles_only:
            segments = min(limits.max_running, bucket.rows) + bucket.rows // self._segment_rows
        rows = (bucket.rows,)
        self._shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_ROW_FIELDS, rows) | {
            "logit_rows": (bucket.logits,),
            "deciding": (min(bucket.logits, limits.max_running), 4),
            "decode_rows": (decode_rows,),
            "segments": (segments, 4),
            "item_offsets": (segments + 1,),
            "tiles": (tiles, 4),
            "updates": (_FREE_UPDATES + bucket.rows, 2),
        }
        self._offsets: dict[str, int] = {}
        end = 0
        for name, shape in self._shapes.items():
            self._offsets[name] = end
            end += -(-prod(shape) // _ALIGNMENT) * _ALIGNMENT
        self.words = end
        self.choices = (
            OutcomeLayout(bucket, limits.max_running, self._segment_rows, end) if may_select(bucket) else None
        )
        """Of passes that have choices, behind these words."""
        self.max_words = end if self.choices is None else self.choices.end
        self.most_updates = self._shapes["updates"][0]
        self._places = np.array([(first, prod(self._shapes[name])) for name, first in self._offsets.items()], np.int32)

    @classmethod
    def of(cls, bucket: Bucket, limits: GpuLimits, shard: Shard) -> PlanLayout:
        """For the attention of a model."""
        tile_rows = PREFILL_COLUMNS // shard.group
        return cls(
            bucket,
            limits,
            columns=PREFIX_COLUMNS,
            tile_rows=tile_rows,
            group=shard.group,
            kv_heads=shard.kv_heads,
        )

    def views(self, block: Any) -> PlanArrays[Any]:
        """The arrays within a block of at least `words` words, a tensor or a numpy array."""
        return PlanArrays(
            **{
                name: block[offset : offset + prod(shape)].reshape(shape)
                for (name, offset), shape in zip(self._offsets.items(), self._shapes.values(), strict=True)
            }
        )

    def pack(self, plan: PassPlan, updates: Int32, words: Int32) -> None:
        """Fill all arrays, which lie in `words`; `updates` are at most `most_updates`. The plan is `in_order`.

        Raises ValueError for a plan that is larger than the bucket.
        """
        decodes = plan.decodes
        if self._has_tiles:
            tiles = tiles_of(plan.prefills, self._tile_rows)
            alone = fit_a_tile(decodes, tiles, self._kv_heads)
            if len(plan.choices):
                alone[:] = False  # segments are counted by spans there
            own = decodes[alone]
            own[:, 3] -= 1  # a tile's first position, of a span's prefix length
            tiles = np.concatenate([tiles, own])
            decodes = decodes[~alone]
            first = self._offsets["tiles"]
            room = words[first : first + prod(self._shapes["tiles"])]
            pad(tiles[np.argsort(-tiles[:, 3], kind="stable")], room, 0)  # the costliest tiles first
        pack_pass(
            plan.token_ids,
            plan.positions,
            plan.write_slots,
            plan.lines,
            plan.prefix_lengths,
            plan.parents,
            plan.root_rows,
            plan.logit_rows,
            plan.deciding,
            updates,
            decodes,
            self._segment_rows,
            self._splits,
            BLOCK,
            self._places,
            words,
        )

    def pack_choices(self, plan: PassPlan, words: Int32) -> int:
        """Fill the choices behind these arrays, which only passes with trees have; return their end."""
        assert self.choices is not None, "passes without trees have no choices"
        self.choices.pack(plan, words)
        return self.choices.sent_end


@cache
def _splits_of(blocks: int) -> Int32:
    """Splits of 0 to `blocks` - 1 full blocks, the same array for all layouts of a context. Not to be written."""
    return np.array([num_splits(block * BLOCK) for block in range(blocks)], np.int32)


class PlanLayouts:
    """The layouts of a model's buckets, each of them made once."""

    def __init__(self, limits: GpuLimits, shard: Shard) -> None:
        self._limits = limits
        self._shard = shard
        self._made: dict[Bucket, PlanLayout] = {}

    def of(self, bucket: Bucket) -> PlanLayout:
        """The layout of a bucket's passes, whatever states they keep."""
        bucket = bucket.without_states
        layout = self._made.get(bucket)
        if layout is None:
            layout = self._made[bucket] = PlanLayout.of(bucket, self._limits, self._shard)
        return layout
