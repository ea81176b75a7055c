"""A decoder layer of the Llama family in plain torch, and the keys and values of one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from draft_service.heads.config import HeadConfig


class HeadCache:
    """Keys and values of one request: rows 0 to `length` - 1 are committed, those behind are a tree's."""

    __slots__ = ("keys", "length", "values")

    def __init__(self, config: HeadConfig) -> None:
        shape = (config.num_layers, config.num_kv_heads, 0, config.head_dim)
        self.keys, self.values = torch.empty(shape), torch.empty(shape)
        self.length = 0

    def reserve(self, rows: int) -> None:
        """Make room for `rows` in all; what is there stays."""
        room = self.keys.shape[2]
        if rows > room:
            more = max(rows, 2 * room, 64) - room
            self.keys, self.values = (functional.pad(each, (0, 0, 0, more)) for each in (self.keys, self.values))


@dataclass(frozen=True, slots=True)
class RowSegment:
    """Consecutive rows of a pass that belong to one request.

    begin: the cache's row that the first of them becomes. mask: bool [rows, begin + rows], what each row attends to;
    its own row among it.
    """

    cache: HeadCache
    begin: int
    mask: torch.Tensor

    def __len__(self) -> int:
        return len(self.mask)

    @classmethod
    def committed(cls, cache: HeadCache, rows: int) -> RowSegment:
        """The next `rows` of a text: each attends to all rows up to itself."""
        mask = torch.ones(rows, cache.length + rows, dtype=torch.bool).tril(cache.length)
        return cls(cache, cache.length, mask)


class DecoderLayer:
    """Attention and MLP with their residuals; what is normalised before the attention is the caller's choice."""

    def __init__(self, config: HeadConfig, index: int, tensors: Mapping[str, torch.Tensor]) -> None:
        prefix = f"layers.{index}."
        self._weights = {
            name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)
        }
        self._config, self._index = config, index

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """`x` after the layer's norm of that name, as it is where the layer has none."""
        weight = self._weights.get(f"{name}.weight")
        return x if weight is None else rms_norm(x, weight, self._config.rms_norm_eps)

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, rotary: torch.Tensor, segments: Sequence[RowSegment]
    ) -> torch.Tensor:
        """float32 [rows, hidden]. x: what queries, keys and values are projected from. rotary: [rows, head_dim].

        Writes the rows' keys and values into the segments' caches.
        """
        w = self._weights
        hidden = residual + functional.linear(self._attention(x, rotary, segments), w["self_attn.o_proj.weight"])
        normed = self.norm("post_attention_layernorm", hidden)
        gate = functional.silu(functional.linear(normed, w["mlp.gate_proj.weight"]))
        up = functional.linear(normed, w["mlp.up_proj.weight"])
        return hidden + functional.linear(gate * up, w["mlp.down_proj.weight"])

    def _attention(self, x: torch.Tensor, rotary: torch.Tensor, segments: Sequence[RowSegment]) -> torch.Tensor:
        config = self._config
        query, key, value = (self._heads(name, x) for name in "qkv")
        query, key = (
            rotate(self.norm("self_attn.q_norm", query), rotary),
            rotate(self.norm("self_attn.k_norm", key), rotary),
        )
        outputs, first = [], 0
        for segment in segments:
            rows, end = slice(first, first + len(segment)), segment.begin + len(segment)
            keys, values = segment.cache.keys[self._index], segment.cache.values[self._index]
            keys[:, segment.begin : end] = key[rows].transpose(0, 1)
            values[:, segment.begin : end] = value[rows].transpose(0, 1)
            attended = functional.scaled_dot_product_attention(
                query[rows].transpose(0, 1)[None],
                keys[None, :, :end],
                values[None, :, :end],
                attn_mask=segment.mask,
                enable_gqa=config.num_heads != config.num_kv_heads,
            )
            outputs.append(attended[0].transpose(0, 1).reshape(len(segment), -1))
            first += len(segment)
        return torch.cat(outputs)

    def _heads(self, name: str, x: torch.Tensor) -> torch.Tensor:
        w = self._weights
        flat = functional.linear(x, w[f"self_attn.{name}_proj.weight"], w.get(f"self_attn.{name}_proj.bias"))
        return flat.view(len(x), -1, self._config.head_dim)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root mean square norm over the last dimension (arXiv 1910.07467)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotate(x: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, half-split. x: [rows, heads, head_dim]; rotary: [rows, head_dim], cosines, then sines."""
    cos, sin = rotary[:, None].chunk(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rotary_rows(config: HeadConfig, positions: torch.Tensor) -> torch.Tensor:
    """Cosines and sines of any positions, float32 [rows, head_dim]; no table, so no limit to the context."""
    return torch.from_numpy(config.rope.rows(positions.numpy(), config.head_dim))
