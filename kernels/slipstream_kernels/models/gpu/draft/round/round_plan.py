"""A round's plan as one block of int32 words: laid out by bucket, filled on the host, read by the ops as views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from slipstream_kernels.models.gpu.draft.networks.draft_forward import DraftShape
from slipstream_kernels.models.gpu.draft.round import plan_rows
from slipstream_kernels.models.gpu.draft.round.limits import PAGE_SIZE, DraftLimits
from slipstream_kernels.models.gpu.draft.round.round_buckets import RoundBucket
from slipstream_kernels.ops.gpu.position_splits import BLOCK, num_splits
from slipstream_kernels.ops.gpu.prefill_attention import prefill_tiles
from slipstream_kernels.ops.gpu.prefix_attention import PREFIX_COLUMNS
from slipstream_kernels.ops.gpu.truncate_to_accepted import FOLLOW

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
A = TypeVar("A")

_ALIGNMENT = 16
"""Words to which every array is aligned: 64 bytes."""
_SEGMENTS = (16, 128, 1024, 8192)
"""How many segments a layout has room for: few sizes, as `prefix_attention` is compiled for each."""
_FREE_UPDATES, _UPDATES_PER_SESSION = 64, 8


class RoundItem(NamedTuple):
    """A session's part of a round, or of a pass over text.

    line: of the tables. cached: rows of its text whose keys and values are in its pages. position: of the first row of
    text here, token_ids: theirs, at least one. max_nodes (the root not counted), max_depth: limits of its tree.
    """

    line: int
    cached: int
    position: int
    token_ids: Sequence[int]
    max_nodes: int = 0
    max_depth: int = 0


def item_table(items: Sequence[RoundItem]) -> tuple[Int32, Int32]:
    """The items as int32 [items, 6], columns as in `plan_rows`, and the token ids of all their rows."""
    flat: list[int] = []
    ids: list[int] = []
    for line, cached, position, token_ids, max_nodes, max_depth in items:
        flat += (line, cached, position, len(token_ids), max_nodes, max_depth)
        ids += token_ids
    return np.array(flat, np.int32).reshape(-1, 6), np.array(ids, np.int32)


@dataclass(frozen=True, slots=True)
class RoundArrays(Generic[A]):
    """The padded arrays of a round, int32, named as the ops' arguments; `node_` and `root_` ones are for those rows."""

    updates: A
    token_ids: A
    positions: A
    write_slots: A
    lines: A
    tiles: A
    """[tiles, 4], of passes over text alone"""
    prefix_lengths: A
    parents: A
    root_rows: A
    """of `tree_paths`"""
    decode_rows: A
    segments: A
    item_offsets: A
    last_rows: A
    """[sessions], the last row of text of each, -1 for padding"""
    roots: A
    """[sessions], the session's number, -1 for padding"""
    root_lines: A
    root_positions: A
    limits: A
    """[sessions, 2], of `draft_expand`"""
    node_positions: A
    """[levels - 1, sessions * width], of rotary embedding"""
    node_choices: A
    """[levels - 1, sessions * width], of the nodes' tokens"""
    node_lines: A
    node_prefix_lengths: A
    node_decode_rows: A
    node_segments: A
    node_item_offsets: A
    follows: A
    """[sessions, FOLLOW], of `settle_text`; zeros where the text is known"""


class RoundLayout:
    """Where the arrays of a bucket's rounds lie, and how they are filled."""

    def __init__(self, bucket: RoundBucket, shape: DraftShape, limits: DraftLimits) -> None:
        self._bucket = bucket
        self._width = limits.width
        self._shift = shape.shift
        self._group = shape.group
        self.segment_rows = PREFIX_COLUMNS // shape.group
        """most rows of a segment"""
        blocks = limits.max_context // BLOCK + 2
        self._splits = np.array([num_splits(block * BLOCK) for block in range(blocks)], np.int32)
        self._shapes = self._sizes()
        self._offsets: dict[str, int] = {}
        end = 0
        for name, size in self._shapes.items():
            self._offsets[name] = end
            end += -(-prod(size) // _ALIGNMENT) * _ALIGNMENT
        self.words = end
        self._places = np.array([(first, prod(self._shapes[name])) for name, first in self._offsets.items()], np.int32)

    def views(self, block: Any) -> RoundArrays[Any]:
        """The arrays within a block of at least `words` words, a tensor or a numpy array."""
        return RoundArrays(
            **{
                name: block[offset : offset + prod(size)].reshape(size)
                for (name, offset), size in zip(self._offsets.items(), self._shapes.values(), strict=True)
            }
        )

    def pack(self, table: Int32, tokens: Int32, page_table: Int32, words: Int32) -> None:
        """Fill all arrays, which lie in `words`, but `updates` and `follows`.

        table, tokens: as of `item_table`. page_table: int32 [lines, pages].
        """
        if not self._bucket.levels:
            host = self.views(words)
            host.token_ids[: len(tokens)] = tokens
            host.token_ids[len(tokens) :] = 0
            plan_rows.lay_rows(table, page_table, PAGE_SIZE, host.positions, host.write_slots, host.lines)
            self._lay_tiles(table, host.tiles)
            return
        plan_rows.pack_round(
            table,
            tokens,
            page_table,
            PAGE_SIZE,
            self._shift,
            self._width,
            self.segment_rows,
            self._splits,
            BLOCK,
            self._places,
            words,
        )

    def pack_follows(self, table: Int32, asked: Int64, target: Int32) -> None:
        """Fill `follows` of items that follow a pass: the row of its results and the first state's place for each.

        asked: int64 [items, 2]. Nothing is asked of it, [0, 2], where the items' text is known.
        """
        target[:] = 0
        if not len(asked):
            return
        rows = table[:, plan_rows.ROWS]
        segments = -(-rows // self.segment_rows)
        follows = target[: len(asked)]
        follows[:, 0], follows[:, 1] = asked[:, 0], np.cumsum(rows) - rows
        follows[:, 2], follows[:, 3] = rows, asked[:, 1]
        follows[:, 4] = np.cumsum(segments) - segments

    def _lay_tiles(self, table: Int32, target: Int32) -> None:
        tiles: list[tuple[int, int, int, int]] = []
        first = 0
        for line, cached, _, rows, _, _ in table.tolist():
            tiles += prefill_tiles(first, rows, line, cached, self._group)
            first += rows
        tiles.sort(key=lambda tile: -tile[3])
        target[:] = 0
        if tiles:
            target[: len(tiles)] = tiles

    def _sizes(self) -> dict[str, tuple[int, ...]]:
        bucket, rows = self._bucket, (self._bucket.text_rows,)
        text = dict.fromkeys(("token_ids", "positions", "write_slots", "lines"), rows)
        if not bucket.levels:
            rows = nodes = sessions = (0,)
            tiles, segments, node_segments, deeper = bucket.text_rows, 0, 0, 0
        else:
            sessions, nodes = (bucket.sessions,), (bucket.sessions * self._width,)
            tiles, deeper = 0, bucket.levels - 1
            segments = _room(bucket.sessions + bucket.text_rows // self.segment_rows)
            node_segments = _room(bucket.sessions * -(-self._width // self.segment_rows))
        return {
            "updates": (_FREE_UPDATES + _UPDATES_PER_SESSION * bucket.sessions, 2),
            **text,
            "tiles": (tiles, 4),
            **dict.fromkeys(("prefix_lengths", "parents", "root_rows", "decode_rows"), rows),
            "segments": (segments, 4),
            "item_offsets": (segments + 1,),
            **dict.fromkeys(("last_rows", "roots", "root_lines", "root_positions"), sessions),
            "limits": (*sessions, 2),
            "node_positions": (deeper, *nodes),
            "node_choices": (deeper, *nodes),
            **dict.fromkeys(("node_lines", "node_prefix_lengths", "node_decode_rows"), nodes),
            "node_segments": (node_segments, 4),
            "node_item_offsets": (node_segments + 1,),
            "follows": (*sessions, FOLLOW),
        }


def _room(segments: int) -> int:
    return next(size for size in _SEGMENTS if size >= segments)
