"""Attention of a round's passes over the pages of the draft's own keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from slipstream_kernels.models.gpu.forward.kv_store import KVStore
from slipstream_kernels.models.gpu.forward.ops_namespace import Ops
from slipstream_kernels.ops.gpu.attention_state import AttentionPartials
from slipstream_kernels.ops.gpu.prefix_attention import PREFIX_COLUMNS


@dataclass(frozen=True, slots=True)
class TreeAttention:
    """Of rows that hang below a cached text: the session's tree, or the chain of its latest rows of text.

    Fields are the arguments of `prefix_attention` and `tail_attention`. `write_slots` are those of all rows that
    `paths` counts, the others those of the pass.
    """

    ops: Ops
    kv: KVStore
    page_table: torch.Tensor
    segments: torch.Tensor
    item_offsets: torch.Tensor
    lines: torch.Tensor
    prefix_lengths: torch.Tensor
    paths: torch.Tensor
    depths: torch.Tensor
    write_slots: torch.Tensor
    decode_rows: torch.Tensor
    partials: AttentionPartials

    def __call__(self, layer: int, q: torch.Tensor, out: torch.Tensor, wanted: torch.Tensor | None = None) -> None:
        """out = attention of bfloat16 q [rows, heads, head_dim], of all rows or at least of those `wanted`."""
        keys, values, page_size = self.kv.keys[layer], self.kv.values[layer], self.kv.page_size
        self.ops.prefix_attention(
            q,
            keys,
            values,
            self.page_table,
            page_size,
            self.segments,
            self.item_offsets,
            self.partials,
            columns=PREFIX_COLUMNS,
        )
        self.ops.tail_attention(
            q,
            keys,
            values,
            self.page_table,
            page_size,
            self.lines,
            self.prefix_lengths,
            self.paths,
            self.depths,
            self.write_slots,
            self.decode_rows if wanted is None else wanted,
            self.partials,
            out,
        )


@dataclass(frozen=True, slots=True)
class TextAttention:
    """Of consecutive rows of text, in the tiles of `prefill_attention`."""

    ops: Ops
    kv: KVStore
    page_table: torch.Tensor
    tiles: torch.Tensor

    def __call__(
        self,
        layer: int,
        q: torch.Tensor,
        out: torch.Tensor,
        wanted: torch.Tensor | None = None,  # tiles are of many rows
    ) -> None:
        """As `TreeAttention`."""
        keys, values = self.kv.keys[layer], self.kv.values[layer]
        self.ops.prefill_attention(q, keys, values, self.page_table, self.kv.page_size, self.tiles, out)
